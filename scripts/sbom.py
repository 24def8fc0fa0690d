"""A software bill of materials of a Python environment, with the jars of its Spark.

The packages are those that ``cyclonedx-py`` finds. A jar says itself which artifact of Maven it is,
or its name does. The same environment gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

VERSION = SchemaVersion.V1_6
JARS = "from importlib.util import find_spec as f; s = f('pyspark'); print(s and s.origin or '')"
NAMED = re.compile(r"(?P<name>.+?)[-_](?P<version>\d.*)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="the interpreter of the environment")
    text = bill(parser.parse_args().python)
    problem = JsonStrictValidator(VERSION).validate_str(text)
    if problem is not None:
        sys.exit(f"sbom: not a bill of materials: {problem}")
    print(text)


def bill(python: str) -> str:
    command = [sys.executable, "-m", "cyclonedx_py", "environment", python, "--short-PURLs"]
    command += [
        "--no-validate",
        "--output-reproducible",
        "--sv",
        VERSION.to_version(),
        "--of",
        "JSON",
    ]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    document: dict[str, Any] = json.loads(found)
    for component in document["components"]:
        component.pop("externalReferences", None)  # of an editable package a path on this machine
    document["components"] += [component_of(jar) for jar in jars(python)]
    return json.dumps(document, indent=2)


def jars(python: str) -> Iterator[Path]:
    spark = subprocess.run([python, "-c", JARS], check=True, capture_output=True, text=True).stdout
    if spark.strip():
        yield from sorted((Path(spark.strip()).parent / "jars").glob("*.jar"))


def component_of(jar: Path) -> dict[str, Any]:
    group, name, version = artifact_of(jar)
    purl = PackageURL("maven", group or None, name, version or None).to_string()
    return {
        "type": "library",
        "bom-ref": f"{purl}#{jar.name}",
        **({"group": group} if group else {}),
        "name": name,
        **({"version": version} if version else {}),
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(jar.read_bytes()).hexdigest()}],
    }


def artifact_of(jar: Path) -> tuple[str, str, str]:
    """Group, name and version. A jar may hold others, of which it says so too."""
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.namelist():
            if entry.startswith("META-INF/maven/") and entry.endswith("/pom.properties"):
                text = archive.read(entry).decode("utf-8", "replace")
                said = dict(line.strip().split("=", 1) for line in text.split("\n") if "=" in line)
                name, version = said.get("artifactId", ""), said.get("version", "")
                if jar.stem.startswith(f"{name}-{version}"):
                    return said.get("groupId", ""), name, version
    named = NAMED.fullmatch(jar.stem)
    return ("", named["name"], named["version"]) if named else ("", jar.stem, "")


if __name__ == "__main__":
    main()
