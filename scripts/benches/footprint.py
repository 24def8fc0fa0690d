"""What the parts cost while they do little: a node's control process, and the command line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benches.processes import peak_rss_mb
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.store import RealZooKeeper
from zkschema import paths

FLOW = """
flow: idle
sources: [{syslog: {listen: "127.0.0.1:0"}}]
sinks: [noop]
"""
RUNS = 5
PATIENCE_SECONDS = 60.0


def node_rss_mb() -> float:
    """Peak resident megabytes of a node's control process that runs a source, under a master."""
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as folder:
        zookeeper = RealZooKeeper(Path(folder) / "zookeeper")
        zookeeper.start()
        store = connect(f"{zookeeper.address}/bench")
        tree.init(store)
        apply_flow(Operator(store, "bench", "", time.time()), FLOW)
        hosts = f"{zookeeper.address}/bench"
        node = ["--zk", hosts, "--data", f"{folder}/node", "--name", "n1"]
        with Path(folder, "log").open("ab") as log:
            processes = [
                subprocess.Popen([sys.executable, "-m", *command], stderr=log)
                for command in (["flumeng.control.master", hosts], ["flumeng.agent.node", *node])
            ]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (status := store.read(paths.status("n1"))) is None or not any(
            task.state == "running" for task in status.value.tasks.values()
        ):
            assert time.monotonic() < deadline, Path(folder, "log").read_text()
            time.sleep(0.2)
        peak = peak_rss_mb(processes[1].pid)
        for process in processes:
            process.terminate()
            process.wait()
        store.close()
        zookeeper.kill()
        return peak


def help_seconds() -> float:
    """The best of a few runs of ``flumeng --help``, whole process."""
    flumeng = Path(sys.executable).with_name("flumeng")
    seconds = []
    for _ in range(RUNS):
        started = time.monotonic()
        subprocess.run([flumeng, "--help"], stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.monotonic() - started)
    return min(seconds)
