"""Spark's interface as a collector has it: off, or on loopback and for looking only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession

from flumeng.agent.collector.spark import ui_address

SESSION = """
import json, os, sys, urllib.error, urllib.request
from pathlib import Path
from flumeng.agent.collector import class_archive, jvm, spark
from flumeng.config.spark import SparkOptions

def listening(pid):
    here = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
    lines = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/net/{kind}")]
    held = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in here]
    return {int(place.partition(":")[2], 16): place.partition(":")[0] for place in held}

def ask(url, method="GET"):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""

directory = Path(sys.argv[1])
options = SparkOptions(ui=True, ui_url="https://ops.example/spark/n1/")
java_options = class_archive.java_options(class_archive.cache_of(directory))
session = spark.start(directory, options, more_java_options=java_options)
context = session.sparkContext
port = int(context.uiWebUrl.rpartition(":")[2])
context.setJobGroup("g", "web/0: 45 events")
context.parallelize([1, 2], 2).sum()
said = {
    "address": spark.ui_address(session),
    "listens": listening(jvm.pid())[port],
    "page": ask(f"http://127.0.0.1:{port}/jobs/")[1],
    "kill": ask(f"http://127.0.0.1:{port}/jobs/job/kill/?id=0", "POST")[0],
}
print(json.dumps(said), flush=True)
os._exit(0)
"""
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F")


def test_spark_ui_is_off_by_default(spark: SparkSession) -> None:
    assert ui_address(spark) == ""


def test_spark_ui_is_local_read_only_and_links_through_the_proxy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SESSION, str(tmp_path / "spark")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    said = json.loads(done.stdout)
    assert said["listens"] in LOOPBACK
    assert said["kill"] == 403
    assert "web/0: 45 events" in said["page"]
    assert 'href="/spark/n1/jobs/"' in said["page"]
    assert said["address"] == "https://ops.example/spark/n1"


def test_spark_ui_address_is_loopback_without_a_proxy() -> None:
    context = SimpleNamespace(uiWebUrl="http://node-1.example:4041")
    session: Any = SimpleNamespace(sparkContext=context, conf={})
    assert ui_address(session) == "http://127.0.0.1:4041"
