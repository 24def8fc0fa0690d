"""A flow of another site over a long fat line: 75 ms each way, 0.1 % of the packets lost.

Two real sites run in two network namespaces with a link of our own between them
(``tests/testkit/ip_link.py``), as the kernel may have no netem. The source's journal is filled
first, so that its CPU time is that of serving alone.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds

from benches import relay_mirrormaker
from benches.relay_readers import source_cpu_seconds
from benches.relay_sites import COPY, LINE_BYTES, Lines, Site, two_sites, until
from tests.testkit.ip_link import Ends, Line, linked

PLAIN_PORT = 5000
CHUNK = bytes(1 << 20)
WARM_SECONDS = 4.0
"""A plain TCP stream has left its slow start by then."""
BUSY_SHARE = 0.9
"""A smaller line is taken when plain TCP fills less of it."""
SHARE_SECONDS = 40.0
LAG_SECONDS = 15.0
PART_SECONDS = 1.0
SUBSCRIBERS = 20
SLOWEST = 6.0
BEGUN_BYTES = 100_000
LEAST_MBIT = 60
TCP_CONGESTION = socket.TCP_CONGESTION


def run(mbit: int = 1000, seconds: float = SHARE_SECONDS) -> dict[str, object]:
    """A line of ``mbit``; of half or less when plain TCP cannot fill that here. A backlog of
    ``seconds`` is read, then events come at half of the line's rate; MirrorMaker is last."""
    wanted = mbit
    while True:
        with linked(Line(mbit * 1e6)) as ends:
            most = rate(ends, "bbr", 16) / mbit
            if most < BUSY_SHARE and mbit > LEAST_MBIT:
                mbit //= 2
                continue
            line = mbit * 1e6 / 8
            with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
                found = measure(Path(folder), ends, line, seconds)
                mirrored = relay_mirrormaker.measure(Path(folder), ends, line)
            return {
                "wanted_mbit": wanted,
                "line_mbit": mbit,
                **found,
                "mirrormaker_line_share": round(mirrored, 3),
                "tcp_16_bbr_line_share": round(most, 3),
                "tcp_1_bbr_line_share": round(rate(ends, "bbr", 1) / mbit, 3),
                "tcp_1_cubic_line_share": round(rate(ends, "cubic", 1) / mbit, 3),
            }


def measure(folder: Path, ends: Ends, line: float, seconds: float) -> dict[str, object]:
    """``line``: bytes a second."""
    with two_sites(folder, ends) as (source, target), closing(Lines(source)) as lines:
        target.apply(COPY.format(lake=target.lake))
        lines.send(1000)
        until(lambda: target.acked("copy") == lines.sent, "the first events")
        shares = fill_and_read(source, target, lines, line, seconds)
        lag = lags(target, lines, line / 2)
        rows = ds.dataset(target.lake).to_table(columns=["journal", "seq"])
        distinct = rows.group_by(["journal", "seq"]).aggregate([]).num_rows
    return {
        **shares,
        "lag_p99_ms": lag,
        "lost": lines.sent - distinct,
        "twice": rows.num_rows - distinct,
    }


def fill_and_read(
    source: Site, target: Site, lines: Lines, line: float, seconds: float
) -> dict[str, float]:
    """Share of the line, from the first byte to the last ack, and CPU time of the source's node
    while a backlog is read; and by how much that time grows with twenty subscribers."""
    ends = target.ends
    target.pause("copy")
    before, first = source.journal_bytes, lines.sent
    lines.send(int(line * seconds / LINE_BYTES))
    count = lines.sent - first
    settle(source)
    each = (source.journal_bytes - before) / count
    part = int(line * PART_SECONDS / LINE_BYTES)
    one = source_cpu_seconds(source, target, first, first + 4 * part, 1) / 4
    many = source_cpu_seconds(source, target, first, first + part, SUBSCRIBERS)
    cpu = source.cpu_seconds
    idle = ends.received_bytes(target.end) + BEGUN_BYTES
    target.resume("copy")
    until(lambda: ends.received_bytes(target.end) > idle, "the first byte")
    began = time.monotonic()
    until(lambda: target.acked("copy") == lines.sent, "the last ack", seconds * SLOWEST)
    taken = time.monotonic() - began
    cpu = source.cpu_seconds - cpu
    return {
        "line_share": round(count * each / taken / line, 3),
        "source_cpu_seconds_per_gb": round(cpu / (count * each) * 1e9, 3),
        "cpu_20_over_1": round(many / one, 2),
    }


def settle(source: Site) -> None:
    """Wait until the journal has taken all that was sent, and its writer rests."""
    size = -1
    while size != (size := source.journal_bytes):
        time.sleep(2.0)


def lags(target: Site, lines: Lines, rate: float) -> float:
    """Milliseconds at the 99th percentile from an event's receipt to its visible file."""
    began = time.time()
    lines.send(int(rate * LAG_SECONDS / LINE_BYTES), rate)
    until(lambda: target.acked("copy") == lines.sent, "the last events")
    delays = []
    for file in target.lake.rglob("*.parquet"):
        times = ds.dataset(file).to_table(columns=["ts"])["ts"].cast("int64").to_numpy() / 1e6
        times = times[times > began + LAG_SECONDS / 4]
        delays.append(file.stat().st_ctime - times)
    return round(1000 * float(np.percentile(np.concatenate(delays), 99)))


def rate(ends: Ends, how: str, streams: int) -> float:
    """Megabits a second of plain TCP streams with that congestion control."""
    with serving(ends, how, streams):
        counts = [0] * streams
        readers: list[socket.socket] = []
        with ends.inside(1):
            for _ in range(streams):
                readers.append(socket.create_connection((ends.addresses[0], PLAIN_PORT)))
        for number, reader in enumerate(readers):
            threading.Thread(target=_drain, args=(reader, counts, number), daemon=True).start()
        time.sleep(WARM_SECONDS)
        began, before = time.monotonic(), sum(counts)
        time.sleep(WARM_SECONDS)
        found = (sum(counts) - before) * 8e-6 / (time.monotonic() - began)
        for reader in readers:
            reader.close()
        return found


@contextmanager
def serving(ends: Ends, how: str, streams: int) -> Iterator[None]:
    """Each stream sends until its reader goes."""
    with ends.inside(0), socket.create_server((ends.addresses[0], PLAIN_PORT)) as server:
        server.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, how.encode())

        def serve() -> None:
            for _ in range(streams):
                threading.Thread(target=_fill, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield


def _fill(connection: socket.socket) -> None:
    try:
        while True:
            connection.sendall(CHUNK)
    except OSError:
        connection.close()


def _drain(reader: socket.socket, counts: list[int], number: int) -> None:
    buffer = bytearray(1 << 20)
    try:
        while got := reader.recv_into(buffer):
            counts[number] += got
    except OSError:
        pass
