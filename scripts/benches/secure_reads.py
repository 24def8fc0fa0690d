"""How fast a journal is read over mutual TLS, beside the same journal read in the open.

The servers are in a process of their own; the reads take turns, so that both meet the same machine.
What is told is the best of each: how fast it can be, not how busy others were.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benches.senders import LINE_BYTES, make_lines
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.proof import Proof
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.security.credentials import Keystore, keystore_of
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import Certificates

ID = "bench.n1.0.0a1b2c3d"
FRAME_ROWS = 20_000
ROUNDS = 5


def run(events: int = 2_000_000) -> dict[str, Any]:
    """Megabytes a second are those of the events' bodies."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as name:
        folder = Path(name)
        _make(folder / "journal", events)
        identity = Certificates(folder / "certificates").folder("node", "collector")
        proof = Proof.of(Keystore(identity, "collector").load())
        plain, tls = 0.0, 0.0
        with _served(folder / "journal", identity) as (open_address, address):
            for _ in range(ROUNDS):
                plain = max(plain, _read(open_address, events, None))
                tls = max(tls, _read(address, events, proof))
    return {
        "journal_read_plain_mb_per_second": round(plain, 1),
        "journal_read_tls_mb_per_second": round(tls, 1),
        "journal_read_tls_ratio": round(tls / plain, 2),
    }


@contextlib.contextmanager
def _served(journal: Path, identity: Path) -> Iterator[list[str]]:
    """The addresses of a server for everybody and of one with certificates, in one process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benches.secure_reads", str(journal)],
        env={**os.environ, DIRECTORY: str(identity)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()
    finally:
        process.communicate()


def _read(address: str, events: int, proof: Proof | None) -> float:
    """Megabytes a second."""
    with JournalClient(address, prove=lambda: proof) as client:
        client.positions()
        began, seq = time.monotonic(), 0
        for batch in client.read(ID, 0, events):
            seq += batch.num_rows
        assert seq == events
        return events * LINE_BYTES / 1e6 / (time.monotonic() - began)


def _make(folder: Path, events: int) -> None:
    lines = pa.array(make_lines(FRAME_ROWS), pa.binary())
    journal = Journal.create(folder, ID)
    for first in range(0, events, FRAME_ROWS):
        count = min(FRAME_ROWS, events - first)
        columns = [
            lines.slice(0, count),
            pa.array(np.arange(first, first + count)).cast(EVENT_SCHEMA.field("ts").type),
            pa.repeat("web-1", count),
            pa.nulls(count, EVENT_SCHEMA.field("attrs").type),
        ]
        journal.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
    journal.sync()
    journal.close()


def _serve(folder: Path) -> None:
    """Until its input ends."""
    journal = Journal.open(folder / ID)
    servers = [
        JournalServer("127.0.0.1", journals=lambda: {ID: journal}, keystore=keystore)
        for keystore in (None, keystore_of("node"))
    ]
    print(*(server.address for server in servers), flush=True)
    sys.stdin.read()
    for server in servers:
        server.stop()
    journal.close()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
