"""Class-data sharing (JEP 350) for Spark's JVM: an archive of the classes loaded at its start. The
archive saves most of that start's time. Its name identifies the Java and the jars it is for, by
their paths too: before Java 19 an archive is useless where the jars are elsewhere."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pyspark

from flumeng.platform import private_directory
from flumeng.platform.errors import UserError
from flumeng.platform.java import find_java
from flumeng.platform.processes import PYTHON, die_with_parent

CACHE_VARIABLE = "FLUMENG_CACHE"
ROOM_BYTES = 512 * 1024 * 1024
TRAINING = 2
"""Grows when ``_train`` loads other classes."""
IN_PLACE = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
"""Maps the archive where it was made for. Else Java moves all of it at each start, which takes a
tenth of a second and 70 MB that no other process shares."""
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
BACKGROUND_NICENESS = 19
BACKGROUND_AFTER_SECONDS = 60.0
"""A collector that has run this long will likely be started again."""


def cache_of(data: Path) -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else data / "cache"


def archive_in(cache: Path) -> Path:
    """Return the archive's path for this Java and these jars. Raises UserError without Java."""
    java = Path(find_java()).resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    content = [f"{java} {java.stat().st_mtime_ns}", f"{jars} {TRAINING}"]
    content += sorted(f"{jar.name} {jar.stat().st_size}" for jar in jars.glob("*.jar"))
    key = hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]
    return cache / f"spark-{pyspark.__version__}-{key}.jsa"


def java_options(cache: Path) -> str:
    """Return JVM options to use the archive; empty unless this user has one. Raises UserError."""
    archive = archive_in(cache)
    with suppress(OSError):
        if archive.stat().st_uid == os.getuid():
            return f"-Xshare:auto -XX:SharedArchiveFile={archive} {IN_PLACE} {QUIET}"
    return ""


def make_later(cache: Path) -> None:
    timer = threading.Timer(BACKGROUND_AFTER_SECONDS, make_in_background, [cache])
    timer.daemon = True
    timer.start()


def make_in_background(cache: Path, room_bytes: int = ROOM_BYTES) -> subprocess.Popen[bytes] | None:
    """Start creating the archive at low priority; None when it exists or the disk is unusable."""
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        if archive_in(cache).exists() or shutil.disk_usage(cache).free < room_bytes:
            return None
    except OSError:
        return None
    return subprocess.Popen(
        [*PYTHON, "flumeng.agent.collector.class_archive", str(cache), "--background"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def make(cache: Path) -> Path:
    """Create the archive if it is missing, under a file lock, and return its path. Raises UserError
    without Java or write access."""
    archive = archive_in(cache)
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                with tempfile.TemporaryDirectory(dir=cache) as scratch:
                    unfinished = Path(scratch) / archive.name
                    _train(Path(scratch) / "spark", unfinished)
                    unfinished.rename(archive)
                for old in set(cache.glob("spark-*.jsa")) - {archive}:
                    old.unlink()
    except OSError as error:
        raise UserError(f"cannot write to {cache}: {error.strerror}") from error
    return archive


def _train(scratch: Path, archive: Path) -> None:
    """Load a collector's classes, then end the JVM cleanly: it writes the archive at exit."""
    from flumeng.agent.collector import jvm, spark  # noqa: PLC0415  only when it is needed
    from flumeng.agent.collector.engine import SparkEngine  # noqa: PLC0415

    options = f"-XX:ArchiveClassesAtExit={archive} {QUIET}"
    session = spark.start(scratch, more_java_options=options)
    SparkEngine(session).stay_warm()
    rows = session.range(0, 2, 1, 2)
    rows.selectExpr("cast(id as string) AS body").where("body > '0'").mapInArrow(
        lambda batches: batches, "body string"
    ).toArrow()
    session.stop()
    jvm.end()


def main() -> None:
    """Run ``python -m flumeng.agent.collector.class_archive DIRECTORY [--background]``."""
    cache, *how = sys.argv[1:]
    if how == ["--background"]:
        die_with_parent()
        os.nice(BACKGROUND_NICENESS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        os.umask(private_directory.OTHERS)
        make(Path(cache))
    except UserError as problem:
        raise SystemExit(str(problem)) from problem


if __name__ == "__main__":
    main()
