"""A Spark application without executors, killed by its master, and without its JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.testkit.spark_cluster import StandaloneCluster

REQUIREMENTS = Path("conf/spark/executors.txt")
SESSION = """
import os, re, signal, sys, threading, time, urllib.parse, urllib.request
from pathlib import Path
from py4j.protocol import Py4JError
from flumeng.agent.collector import class_archive, jvm, spark
from flumeng.config.spark import SparkOptions

def wait_for(done):
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.1)

directory, options, log = Path(sys.argv[1]), SparkOptions(master=sys.argv[2]), Path(sys.argv[3])
java_options = class_archive.java_options(class_archive.cache_of(directory))
session = spark.start(directory, options, more_java_options=java_options)
print(spark.is_starved(session), spark.is_stopped(session), flush=True)
threading.Thread(target=lambda: session.range(1).collect(), daemon=True).start()
wait_for(lambda: spark.is_starved(session))
page = re.search(r"MasterWebUI.* (http://\\S+)", log.read_text())[1]
form = urllib.request.urlopen(page).read().decode()
token = re.search(r'name="csrfToken"[^>]* value="([^"]+)"', form)[1]
number = session.sparkContext.applicationId
kill = {"id": number, "terminate": "true", "csrfToken": token}
urllib.request.urlopen(f"{page}/app/kill/", urllib.parse.urlencode(kill).encode())
wait_for(lambda: spark.is_stopped(session))
spark.ask(session)
os.kill(jvm.pid(), signal.SIGKILL)
jvm.wait_for_end()
try:
    spark.ask(session)
except (Py4JError, OSError):
    print("gone", flush=True)
os._exit(0)
"""


@pytest.mark.long
def test_starved_stopped_and_ended_applications_are_noticed(tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path / "cluster", REQUIREMENTS, workers=0)
    cluster.start()
    try:
        log = tmp_path / "cluster" / "master.log"
        command = [sys.executable, "-c", SESSION, f"{tmp_path}/spark", cluster.address, str(log)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    finally:
        cluster.stop()
    assert done.stdout.split() == ["False", "False", "gone"]
