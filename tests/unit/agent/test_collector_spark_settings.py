"""Settings on the command line of Spark's launcher, and secrets in a file of the collector's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flumeng.agent.collector import spark
from flumeng.config.spark import SparkOptions
from flumeng.platform.errors import UserError

KEY = "spark.authenticate.secret"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", "")
    monkeypatch.setenv("FLUMENG_SECRET_SPARK", r"back\slash")
    monkeypatch.setenv("FLUMENG_SECRET_LINES", "one\ntwo")


def test_secret_is_in_a_file_of_the_collector_and_not_on_the_command_line(tmp_path: Path) -> None:
    options = SparkOptions(conf={KEY: "${secret:spark}", "spark.speculation": "true"})
    assert spark._given_settings(options) == {"spark.speculation": "true"}
    spark._hide(tmp_path / "conf", options)
    file = tmp_path / "conf" / "spark-defaults.conf"
    assert file.read_text() == KEY + " back\\\\slash\n"
    assert (file.stat().st_mode & 0o777, (tmp_path / "conf").stat().st_mode & 0o777) == (
        0o600,
        0o700,
    )


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ({"spark.speculation": "${secret:spark}"}, "cannot hold a secret"),
        ({KEY: "${secret:lines}"}, "several lines"),
        ({KEY: "${secret:gone}"}, "there is no secret gone"),
    ],
)
def test_setting_whose_secret_cannot_be_hidden_is_refused(
    tmp_path: Path, conf: dict[str, str], told: str
) -> None:
    with pytest.raises(UserError, match=told) as error:
        spark._hide(tmp_path / "conf", SparkOptions(conf=conf))
    assert "back" not in str(error.value)


def test_no_settings_file_is_written_without_secrets(tmp_path: Path) -> None:
    spark._hide(tmp_path / "conf", SparkOptions(conf={"spark.speculation": "true"}))
    assert not (tmp_path / "conf").exists()


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({}, "-XX:+UseSerialGC"),
        ({"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}, "-XX:+UseSerialGC"),
        ({"JAVA_TOOL_OPTIONS": "-Xss2m -XX:+UseSerialGC"}, ""),
        ({"JDK_JAVA_OPTIONS": "-XX:+UseZGC"}, ""),
    ],
)
def test_java_gets_one_garbage_collector_option(environment: dict[str, str], chosen: str) -> None:
    assert spark.garbage_collector(environment) == chosen


@pytest.mark.slow
def test_collector_whose_java_ends_at_once_gives_the_reason_without_a_traceback(
    tmp_path: Path,
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\necho \'openjdk version "21"\'\n[ "$*" = -version ]\n')
    java.chmod(0o755)
    options = ["--zk", "127.0.0.1:1", "--node", "n1", "--data", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "flumeng.agent.collector", *options],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "\nSpark does not start on local[*]: " in f"\n{ended.stderr}"
    assert "Traceback" not in ended.stderr


JAVA_ERROR = """An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
This stopped SparkContext was created at:

\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            JAVA_ERROR,
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
            "[JAVA_GATEWAY_EXITED] Java gateway process exited",
        ),
    ],
)
def test_reason_of_a_failed_start_is_no_line_of_a_stack(text: str, told: str) -> None:
    assert spark._reason(RuntimeError(text)) == told
