"""The archive of flumeng's code for executors elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import flumeng
from flumeng.agent.collector import shipping

AT_EXECUTORS = (
    "flumeng.agent.collector.units",
    "flumeng.connectors.ranged.reading",
    "flumeng.connectors.ranged.routing",
    "flumeng.connectors.journals.reader",
)
NOT_THERE = ("grpc", "kazoo", "sqlglot", "httptools", "uvloop", "prometheus_client", "click")


def test_a_python_without_flumeng_runs_the_archive(tmp_path: Path) -> None:
    file = shipping.archive(tmp_path)
    code = "import flumeng, zkschema.records;"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{code} print(flumeng.__file__, flumeng.__version__)"],
        env={"PYTHONPATH": str(file)}, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    place, version = done.stdout.split()
    assert place.startswith(str(file))
    assert version == flumeng.__version__


def test_the_archive_is_named_after_its_content(tmp_path: Path) -> None:
    first, other = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    other.mkdir()
    one = shipping.archive(first)
    made = one.stat().st_mtime_ns
    assert shipping.archive(first).stat().st_mtime_ns == made
    again = shipping.archive(other)
    assert again.name == one.name
    assert again.read_bytes() == one.read_bytes()


def test_what_executors_import_needs_only_what_they_have(tmp_path: Path) -> None:
    """See ``conf/spark/executors.txt``: all else is with the driver alone."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({NOT_THERE}));"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden} import {', '.join(AT_EXECUTORS)}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
