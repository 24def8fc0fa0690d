"""The archive of flumeng's code for executors elsewhere."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import flumeng
from flumeng import filters
from flumeng.agent.collector import spark

AT_EXECUTORS = (
    "flumeng.agent.collector.executor_units",
    *(f"flumeng.filters.{module.name}" for module in pkgutil.iter_modules(filters.__path__)),
    *(
        f"flumeng.connectors.{name}"
        for name in (
            "dead_letters.reader",
            "elasticsearch.bulk",
            "files.sink",
            "forward.sink",
            "groups.sink",
            "http.receiver",
            "journals.reader",
            "kafka.producer",
            "kafka.reader",
            "objects.reader",
            "polls.answers",
            "postgres.write_split",
            "ranged.reading",
            "ranged.routing",
            "ranged.runtime",
        )
    ),
)
NOT_THERE = ("grpc", "kazoo", "httptools", "uvloop", "prometheus_client", "click", "rich")


@pytest.mark.slow
def test_python_without_flumeng_runs_the_archive(tmp_path: Path) -> None:
    file = spark.archive(tmp_path)
    code = "import flumeng, zkschema.records;"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{code} print(flumeng.__file__, flumeng.__version__)"],
        env={"PYTHONPATH": str(file)}, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    place, version = done.stdout.split()
    assert place.startswith(str(file))
    assert version == flumeng.__version__


@pytest.mark.slow
def test_the_archive_is_named_after_its_content(tmp_path: Path) -> None:
    first, other = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    other.mkdir()
    one = spark.archive(first)
    made = one.stat().st_mtime_ns
    assert spark.archive(first).stat().st_mtime_ns == made
    again = spark.archive(other)
    assert again.name == one.name
    assert again.read_bytes() == one.read_bytes()


@pytest.mark.slow
def test_modules_for_executors_import_only_packages_of_executors(tmp_path: Path) -> None:
    """See ``conf/spark/executors.txt``: all else is with the driver alone."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({NOT_THERE}));"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden} import {', '.join(AT_EXECUTORS)}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_packages_missing_at_executors_are_hidden_or_needed_by_the_driver_only() -> None:
    """Every package that ``conf/spark/executors.txt`` does not name."""
    listed = re.findall(
        r"^([a-z][\w-]*)", Path("conf/spark/executors.txt").read_text(), re.MULTILINE
    )
    needed = {Requirement(one).name for one in requires("flumeng") or () if "extra" not in one}
    elsewhere = needed - {*listed}
    driver_only = {"cronsim", "cryptography", "prompt-toolkit", "pyspark", "tzdata", "uvicorn"}
    driver_only |= {"jinja2", "joserfc", "python-multipart", "starlette"}
    hidden = {name.replace("grpc", "grpcio").replace("_", "-") for name in NOT_THERE}
    assert {name.replace("_", "-") for name in elsewhere} == driver_only | hidden
