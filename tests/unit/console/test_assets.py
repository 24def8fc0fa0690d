"""Scripts, styles and templates: small, those of others unchanged, all in the distribution."""

from __future__ import annotations

import configparser
import gzip
import hashlib
import re
from pathlib import Path

from flumeng import console

ROOM = Path(console.__file__).parent
VENDORED = ROOM / "static" / "vendor"
MOST_BYTES = 60_000


def test_files_of_others_are_unchanged_and_have_a_licence() -> None:
    rows = re.findall(r"^\| (\S+) \|.*`(\S+)` \| ([0-9a-f]{64}) \|$", _readme(), re.MULTILINE)
    assert {name for name, _, _ in rows} == {file.name for file in VENDORED.glob("*.js")}
    for name, licence, digest in rows:
        assert hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() == digest
        assert (VENDORED / licence).read_text()


def _readme() -> str:
    return (VENDORED / "README.md").read_text()


def test_scripts_and_styles_are_small() -> None:
    files = [
        file for file in (ROOM / "static").rglob("*") if file.suffix in (".js", ".css", ".svg")
    ]
    assert len(files) > 5
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) < MOST_BYTES


def test_the_distribution_has_every_file() -> None:
    config = configparser.ConfigParser()
    config.read(ROOM.parents[1] / "setup.cfg")
    patterns = config["options.package_data"]["flumeng"].split()
    packed = {file for pattern in patterns for file in ROOM.parent.glob(pattern) if file.is_file()}
    for folder in ("static", "templates"):
        there = {file for file in (ROOM / folder).rglob("*") if file.is_file()}
        assert there <= packed
