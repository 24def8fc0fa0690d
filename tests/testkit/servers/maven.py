"""Jars of real servers from Maven Central, fetched once into a cache that outlives a checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from flumeng.platform.errors import UnavailableError, UserError

FETCH_SECONDS = 300
DEPENDENCY = """\
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
    </dependency>
"""
POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>flumeng</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>
{}  </dependencies>
</project>
"""


def cache() -> Path:
    """The directory in ``FLUMENG_CACHE``, else the user's own cache."""
    given = os.environ.get("FLUMENG_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "flumeng"


def jars(*artifacts: str) -> Path:
    """A directory with the jars of all ``artifacts`` (``group:name:version``) and their
    dependencies.

    Raises UserError without Maven, UnavailableError when the jars cannot be fetched.
    """
    key = hashlib.sha256("\n".join(sorted(artifacts)).encode()).hexdigest()[:16]
    target = cache() / "jars" / f"{artifacts[0].split(':')[1]}-{key}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                _fetch(artifacts, Path(scratch))
                (Path(scratch) / "jars").rename(target)
    return target


def _fetch(artifacts: tuple[str, ...], scratch: Path) -> None:
    wanted = "".join(DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
    (scratch / "pom.xml").write_text(POM.format(wanted))
    command = [_maven(), "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command.append("-DoutputDirectory=jars")
    try:
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"Maven took over {FETCH_SECONDS} s for {artifacts}") from error
    if done.returncode:
        raise UnavailableError(f"Maven cannot fetch {artifacts}: {done.stdout[-1000:]}")


def _maven() -> str:
    """The path of Maven; as root on Debian it is installed when it is missing."""
    if shutil.which("mvn") is None and os.getuid() == 0 and shutil.which("apt-get"):
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "maven"]):
            subprocess.run(
                ["apt-get", *arguments],
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=FETCH_SECONDS,
                check=False,
            )
    found = shutil.which("mvn")
    if found is None:
        raise UserError("Maven is missing; on Debian or Ubuntu: sudo apt-get install maven")
    return found
