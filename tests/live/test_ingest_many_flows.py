"""Many mostly idle flows on one worker: their cost follows their traffic."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testkit.ingest_worker import WorkerProcess, flow_text

FLOWS = 200
MOST_THREADS = 60
MOST_CPU = 0.15  # of one processor, on a machine with other work
LOOK_SECONDS = 5.0

UDP = 'syslog: {{listen: "127.0.0.1:0", protocol: udp}}'
HTTP = 'http: {{listen: "127.0.0.1:0"}}'
TAIL = 'tail: {{paths: ["{logs}/{number}/*.log"]}}'


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.parametrize("source", [UDP, HTTP, TAIL])
@pytest.mark.long
def test_idle_flows_use_few_threads_and_little_cpu(
    worker: WorkerProcess, tmp_path: Path, source: str
) -> None:
    logs = tmp_path / "logs"
    for number in range(FLOWS):
        (logs / str(number)).mkdir(parents=True)
    names = [f"f{number}" for number in range(FLOWS)]
    worker.run(
        *(
            flow_text(name, source.format(logs=logs, number=number))
            for number, name in enumerate(names)
        )
    )
    time.sleep(1.0)
    before = cpu_seconds(worker.process.pid)
    time.sleep(LOOK_SECONDS)
    share = (cpu_seconds(worker.process.pid) - before) / LOOK_SECONDS
    assert threads(worker.process.pid) <= MOST_THREADS
    assert share < MOST_CPU
    _say: dict[str, Callable[[str], object]] = {
        UDP: lambda name: _datagram(worker, name),
        HTTP: lambda name: _post(worker, name),
        TAIL: lambda name: (logs / name[1:] / "a.log").write_text("one\n"),
    }
    for name in names[:: FLOWS // 4]:
        _say[source](name)
        assert len(worker.wait_for_events(name, 1)) == 1


def _datagram(worker: WorkerProcess, name: str) -> None:
    host, _, port = worker.task(name)["listen"][0].rpartition(":")
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.sendto(b"<13>one", (host, int(port)))


def _post(worker: WorkerProcess, name: str) -> None:
    with worker.connect(name) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\none\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
