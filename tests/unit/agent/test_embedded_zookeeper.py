"""The configuration of the ZooKeeper that ships, as Java reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.agent.standalone.embedded import configuration


@pytest.mark.parametrize("name", ["plain", "dätä", "数据", "log \N{PARTY POPPER}", r"new\name"])
def test_data_directory_may_have_any_name(name: str) -> None:
    """Java takes the bytes of the file for Latin-1, and a backslash for an escape."""
    text = configuration(Path("/srv") / name, ["clientPort=2181"], ())
    assert text.isascii()
    (line,) = [line for line in text.splitlines() if line.startswith("dataDir=")]
    escaped = line.removeprefix("dataDir=").encode().decode("unicode-escape")
    joined = escaped.encode("utf-16", "surrogatepass").decode("utf-16")
    assert joined == f"/srv/{name}/tree"
