"""The session on a Spark Connect server: its URL, its tags, and plain words for its faults."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from flumeng.agent.collector import connect, drivers, liveness
from flumeng.agent.collector.outcome import one_line
from flumeng.agent.node.running_jobs import RunningJobs
from flumeng.agent.standalone.embedded import free_port
from flumeng.config import spark
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.scrubbing import scrub
from tests.testkit.waiting import wait_for

PLACE = "sc://h:15002"
TOKEN = "open sesame;x=1"
WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback
  File "/opt/spark/worker.py", line 1, in main
{}
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.api.python.PythonException
	at org.apache.spark.api.python.BasePythonRunner
"""
AWAY = """<_MultiThreadedRendezvous of RPC that terminated with:
	status = StatusCode.UNAVAILABLE
	details = "failed to connect to all addresses"
"""


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FLUMENG_SECRET_SPARK", TOKEN)
    return "/;token=${secret:spark};user_id=flumeng"


@pytest.mark.parametrize(
    "text", [AWAY, "[INVALID_HANDLE.SESSION_CHANGED] The handle 1 is invalid. SQLSTATE: HY000"]
)
def test_server_that_has_ended_fails_no_batch(text: str) -> None:
    assert isinstance(one_line(PySparkException(text)), UnavailableError)
    inside = one_line(PySparkException(WORKER.format(f"ValueError: {AWAY}")))
    assert not isinstance(inside, UnavailableError), "the error of a filter is no server's"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (AWAY, f"the Spark Connect server {PLACE} does not answer"),
        ("status = StatusCode.UNAUTHENTICATED", f"{PLACE} refuses the token"),
        (
            WORKER.format("ModuleNotFoundError: No module named 'pyarrow'"),
            "No module named 'pyarrow': install the packages of conf/spark/executors.txt",
        ),
        (
            WORKER.format(
                "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker "
                "has different version: 3.12 than that in driver: 3.11"
            ),
            "Python in worker has different version: 3.12 than that in driver: 3.11",
        ),
    ],
)
def test_fault_of_the_server_is_one_sentence(text: str, told: str) -> None:
    error = connect._explained(PySparkException(text), PLACE)
    assert isinstance(error, UnavailableError)
    assert told in str(error)
    assert "\n" not in str(error)


def test_other_version_of_spark_is_named() -> None:
    session: Any = SimpleNamespace(version="3.5.1")
    with pytest.raises(UnavailableError, match=r"sc://h:15002 has Spark 3\.5\.1, and this node"):
        connect._require_same_version(session, PLACE)


def test_token_is_resolved_for_the_url_alone(secret: str, tmp_path: Path) -> None:
    place = f"sc://127.0.0.1:{free_port()}"
    options = spark.read({"master": place + secret})
    assert connect._url(options) == f"{place}/;token=open%20sesame%3Bx%3D1;user_id=flumeng"
    with pytest.raises(UnavailableError) as raised:
        connect.start(tmp_path, options)
    assert str(raised.value) == f"the Spark Connect server {place} does not answer"
    assert scrub(connect._url(options)) == f"{place}/;token=***;user_id=flumeng"


def test_secret_that_spark_would_show_is_refused(secret: str, tmp_path: Path) -> None:
    conf = "{spark.sql.catalog.lake: '${secret:spark}'}"
    options = spark.read({"master": PLACE + secret, "conf": conf})
    with pytest.raises(UserError, match="cannot hold a secret"):
        connect.start(tmp_path, options)


class Tagged:
    """A session that records its tags."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self.interrupted: list[str] = []
        self.addTag, self.removeTag = self.tags.add, self.tags.remove
        self.interruptTag = self.interrupted.append


def test_job_has_its_tag_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "tasks_at_once", lambda _: 3)
    session: Any = Tagged()
    driver = drivers.ConnectDriver(session)
    with pytest.raises(ValueError, match="stop"), driver.job("job-0.7", "web/0", "job-0"):
        assert session.tags == {"job-0.7"}
        raise ValueError("stop")
    driver.cancel("job-0.7")
    assert (driver.parallelism, session.tags, session.interrupted) == (3, set(), ["job-0.7"])


class Frozen:
    """A driver that answers only when it is let go."""

    def __init__(self) -> None:
        self.thawed = threading.Event()

    def trouble(self, place: str) -> str:
        self.thawed.wait()
        return f"{place} has ended"


def test_server_that_does_not_answer_is_told_until_it_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(liveness, "UNANSWERED_SECONDS", 0.05)
    driver: Any = Frozen()
    options = spark.read({"master": f"{PLACE}/;token=${{secret:spark}}"})
    application = liveness.Application(driver, options, lambda: 0, RunningJobs(tmp_path))
    assert application.held() == ""
    ended: Future[str] = Future()
    follow = threading.Thread(target=lambda: ended.set_result(application.follow()), daemon=True)
    follow.start()
    wait_for(application.held, seconds=10)
    assert application.held() == f"Spark at {PLACE} has not answered for 0.05 s"
    driver.thawed.set()
    assert ended.result(10) == f"{PLACE} has ended"
    assert application.held() == ""
