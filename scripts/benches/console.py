"""How long the console's first page takes, its memory, and what viewers cost ZooKeeper.

The cluster is in a real ZooKeeper: flows planned by a master, each with four journals, on nodes
that answer the console from one process. The console is its own process, asked over HTTP. A viewer
does as a browser: it holds a stream of events, and loads the page again at each picture.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import urllib3

from benches.processes import cpu_seconds, rss_mb
from benches.server import packets
from flumeng import console
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.large_cluster import large_cluster
from tests.testkit.store import RealZooKeeper

PAGES = 30
MINUTE = 60.0
SETTLE_SECONDS = 5.0
IDLE_SECONDS = 35.0
"""The console takes few pictures once nobody has looked for so long."""
ASSETS = (".js", ".css", ".svg")


def run(flows: int = 1000, nodes: int = 400) -> dict[str, object]:
    """The module says what is measured. Reads are those that ZooKeeper received in a minute."""
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as folder:
        server = RealZooKeeper(Path(folder) / "zookeeper")
        server.start()
        hosts = f"{server.address}/bench"
        store = connect(hosts)
        port = int(server.address.rpartition(":")[2])
        try:
            tree.init(store)
            with large_cluster(store, Path(folder) / "journals", flows, nodes):
                return _measured(hosts, port)
        finally:
            store.close()
            server.kill()


def _measured(hosts: str, port: int) -> dict[str, object]:
    started = time.monotonic()
    with _console(hosts) as (url, pid):
        http = urllib3.PoolManager(maxsize=200, block=False)
        while b"no picture" in http.request("GET", url).data:
            time.sleep(0.1)
        ready = time.monotonic() - started
        times = [_timed(http, url) for _ in range(PAGES)]
        size = len(http.request("GET", url).data)
        reads = {number: _reads(http, url, port, pid, number) for number in (0, 1, 100)}
        return {
            "first_page_ms_p50": round(median(times) * 1000, 1),
            "first_page_ms_max": round(max(times) * 1000, 1),
            "first_page_kb": round(size / 1000, 1),
            "ready_seconds": round(ready, 1),
            "rss_mb": round(rss_mb(pid), 1),
            **{f"zk_reads_per_minute_{number}": each for number, (each, _) in reads.items()},
            **{f"cpu_share_{number}": each for number, (_, each) in reads.items()},
            "assets_gz_kb": round(_assets_bytes() / 1000, 1),
        }


@contextmanager
def _console(hosts: str) -> Iterator[tuple[str, int]]:
    """Yield the address of a console and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "console", "--zk", hosts, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        word, _, url = process.stdout.readline().strip().partition(" ")
        assert word == "ready", f"the console said {word}"
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _timed(http: urllib3.PoolManager, url: str) -> float:
    started = time.perf_counter()
    answer = http.request("GET", url)
    assert answer.status == 200, answer.data
    return time.perf_counter() - started


def _reads(
    http: urllib3.PoolManager, url: str, port: int, pid: int, viewers: int
) -> tuple[int, float]:
    """Return the requests to ZooKeeper in a minute, and the console's share of a core, while so
    many viewers look."""
    ended = threading.Event()

    def look() -> None:
        stream = http.request("GET", f"{url}api/v1/events", preload_content=False)
        for text in stream.stream(None):
            if ended.is_set():
                break
            if b"event: picture" in text:
                _timed(http, url)
        stream.close()

    threads = [threading.Thread(target=look) for _ in range(viewers)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(SETTLE_SECONDS if viewers else IDLE_SECONDS)
        before, cpu = packets(port), cpu_seconds(pid)
        time.sleep(MINUTE)
        return packets(port) - before, round((cpu_seconds(pid) - cpu) / MINUTE, 2)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _assets_bytes() -> int:
    folder = Path(console.__file__).parent / "static"
    files = [path for path in folder.rglob("*") if path.suffix in ASSETS]
    return sum(len(gzip.compress(path.read_bytes())) for path in files)
