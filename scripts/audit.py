"""Fails when a package that is installed has a vulnerability that is known.

Where the service that knows them is not reached, one line says so, and nothing fails. What is
accepted stands in ``setup.cfg``, each with its reason. Further arguments go to ``pip-audit``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[1]
ASKED_FIRST = "pyspark"
"""Whether the service is reached is asked of one package: to be refused with 150 takes long."""
FIRST_SECONDS = 40
ALL_SECONDS = 90


def main(arguments: Sequence[str]) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as one:
        one.write(f"{ASKED_FIRST}=={version(ASKED_FIRST)}\n")
        one.flush()
        alone = ["-r", one.name, "--no-deps", "--disable-pip"]
        first = ask([*alone, *arguments], FIRST_SECONDS)
    found = ask(["--skip-editable", *arguments], ALL_SECONDS) if answered(first) else []
    if not answered(found):
        print("known vulnerabilities: not looked for, the service that knows them is not reached")
        return 0
    lines = list(problems(found, accepted(TOP / "setup.cfg")))
    print("\n".join(lines) or f"known vulnerabilities: none in {len(found)} packages")
    return 1 if lines else 0


def ask(arguments: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """What is said of each package; empty when there is no answer."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    command += ["--timeout", "5", "--desc", "off", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return []
    return packages


def answered(packages: Sequence[Mapping[str, Any]]) -> bool:
    return any("vulns" in package for package in packages)


def accepted(config: Path) -> dict[str, str]:
    """Identifier -> why it is accepted. Raises ValueError for one without a reason."""
    parser = ConfigParser()
    parser.read(config)
    lines = parser.get("flumeng:audit", "accepted", fallback="").split("\n")
    pairs = dict(line.strip().partition(" ")[::2] for line in lines if line.strip())
    if without := [name for name, reason in pairs.items() if not reason]:
        raise ValueError(f"setup.cfg accepts {without[0]} without a reason")
    return pairs


def problems(packages: Sequence[Mapping[str, Any]], known: Mapping[str, str]) -> Iterator[str]:
    for package in packages:
        for vulnerability in package.get("vulns", ()):
            names = [vulnerability["id"], *vulnerability.get("aliases", ())]
            if not any(name in known for name in names):
                fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
                said = f"{package['name']} {package['version']}: {' '.join(names)}"
                yield f"known vulnerability: {said}; mended in {fixed}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
