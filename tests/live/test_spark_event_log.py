"""Secrets of a flow's stages stay out of Spark's event log, which a site may keep and share."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PASSWORD = "open-sesame-of-the-index"
BATCHES = """
import sys
from pathlib import Path
from flumeng.agent.collector import spark
from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow
from flumeng.config.spark import SparkOptions
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.journals.reader import JournalReader

folder, journal = Path(sys.argv[1]), "web.n1.0.00000000"
conf = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": str(folder / "events"),
    "spark.eventLog.compress": "false",
}
session = spark.start(folder / "spark", SparkOptions(master="local[1]", conf=conf))
for filters in ("", "{where: 'length(body) > 0'}"):
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], filters: [%s], sinks: ["
        "elasticsearch: {hosts: ['http://127.0.0.1:1'], index: web, username: u, "
        "password: '${secret:index}'}]}"
    )
    task = TaskRevision("web", "0", 1)
    pipeline = SparkPipeline(session, parse_flow(text % filters), task, JournalReader())
    ranges, addresses = (Range(journal, 0, 1),), {journal: "127.0.0.1:1"}
    works = [Work(pipeline, ranges, addresses, {}, 60.0, lambda _: None)]
    try:
        print(pipeline.shareable, SparkEngine(session).write(works, "job", "slot"))
    except Exception as error:
        print(pipeline.shareable, error)
session.stop()
"""


@pytest.mark.slow
def test_event_log_has_no_secret_of_a_sink(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    environment = {**os.environ, "FLUMENG_SECRET_INDEX": PASSWORD}
    done = subprocess.run(
        [sys.executable, "-c", BATCHES, tmp_path],
        env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["True", "False"], done.stdout
    assert done.stdout.count("does not answer") == 2, done.stdout
    logs = [file for file in (tmp_path / "events").rglob("*") if file.is_file()]
    text = "".join(file.read_text() for file in logs)
    jobs = [json.loads(line) for line in text.splitlines() if "SparkListenerJobStart" in line]
    assert len(jobs) == 2
    assert PASSWORD not in text
    hidden = [base64.b64decode(it) for it in re.findall(r'"([A-Za-z0-9+/]{40,}=*)"', text)]
    assert hidden, "the parameters of the SQL run are no longer where this test looks"
    assert not any(PASSWORD.encode() in it for it in hidden)
