"""Batches that never end leave all of a host's cores to others: Spark runs more tasks at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flumeng.agent.collector import spark

SESSION = """
import json, os, sys, threading, time
from pathlib import Path
from flumeng.agent.collector import class_archive, spark
from flumeng.config.spark import SparkOptions

directory, options = Path(sys.argv[1]), SparkOptions(master=sys.argv[2])
java_options = class_archive.java_options(class_archive.cache_of(directory))
session = spark.start(directory, options, more_java_options=java_options, spare_tasks=2)
context = session.sparkContext
cores = context.defaultParallelism

def hang(_numbers):
    time.sleep(600)
    return []

def hanging():
    context.parallelize([0], 1).mapPartitions(hang).count()

for _ in range(2):
    threading.Thread(target=hanging, daemon=True).start()
while len(context.statusTracker().getActiveStageIds()) < 2:
    time.sleep(0.05)
busy = context.parallelize(range(cores), cores).map(lambda n: time.sleep(1) or n).collect()
print(json.dumps([context.master, cores, busy]), flush=True)
os._exit(0)
"""


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[1]", "local[*]"])
def test_hanging_batches_take_no_core_of_others(tmp_path: Path, master: str) -> None:
    command = [sys.executable, "-c", SESSION, str(tmp_path / "spark"), master]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    said, cores, busy = json.loads(done.stdout)
    assert said == f"local[{spark.TASKS_PER_CORE * cores + 2}]"
    assert busy == list(range(cores))
    if master != "local[*]":
        assert cores == 1
