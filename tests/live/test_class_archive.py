"""A real Spark starts with the archive, and does so without a word on standard output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from flumeng.agent.collector import class_archive

SESSION = """
import os, sys
from pathlib import Path
from flumeng.agent.collector import class_archive, jvm, spark
options = class_archive.java_options(Path(sys.argv[1]))
session = spark.start(Path(sys.argv[2]), more_java_options=options)
print({line.split()[-1] for line in open(f"/proc/{jvm.pid()}/maps") if ".jsa" in line}, flush=True)
os._exit(0)
"""


def test_the_jvm_maps_the_archive(tmp_path: Path) -> None:
    cache = class_archive.cache_of(tmp_path)
    making = [sys.executable, "-m", "flumeng.agent.collector.class_archive", str(cache)]
    subprocess.run(making, check=True, timeout=300)  # its JVM ends, and this process needs its own
    archive = class_archive.archive_in(cache)
    assert archive.stat().st_size > 50_000_000
    command = [sys.executable, "-c", SESSION, str(cache), str(tmp_path / "spark")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    assert str(archive) in done.stdout
