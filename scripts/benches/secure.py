"""What security costs: each figure is a ratio of two measurements of one run.

Below /var/tmp, which is a disk also where /tmp is memory.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benches import secure_links, secure_reads
from benches.journal import FRAME_ROWS, ID, Lines
from flumeng.journal.log.encryption import Key, Keyring
from flumeng.journal.log.journal import Journal

KEYRING = Keyring({"${secret:bench}": Key.parse("5a" * 32, "bench")})


def run(events: int = 1_000_000, rounds: int = 3) -> dict[str, Any]:
    """``encrypted_journal_ratio`` is the rate of an encrypted journal by that of one in plain text,
    appended to with a sync after each frame of 4 MB and read from its beginning to its end; the
    median of so many ``rounds``, in which they take turns. At least 0.6 is wanted. What is read
    over mutual TLS: see ``secure_reads``; at least 0.5 is wanted. What comes in over TLS, and what
    is acked: see ``secure_links``; at least 0.5 and 0.7 are wanted.
    """
    lines = Lines()
    ratios = []
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        _seconds(place, lines, FRAME_ROWS, KEYRING)  # OpenSSL is loaded, and pages are there
        for _ in range(rounds):
            plain = _seconds(place, lines, events, None)
            ratios.append(plain / _seconds(place, lines, events, KEYRING))
    return {
        "encrypted_journal_ratio": round(median(ratios), 3),
        **secure_reads.run(events),
        **secure_links.run(events),
    }


def _seconds(place: Path, lines: Lines, events: int, keyring: Keyring | None) -> float:
    """To append, sync and read them all; what comes back is compared."""
    journal = Journal.create(place, ID, keyring=keyring)
    began = time.monotonic()
    while journal.next_seq < events:
        journal.append(lines.batch(journal.next_seq, min(FRAME_ROWS, events - journal.next_seq)))
        journal.sync()
    seq = 0
    for batch in journal.read(0, events):
        lines.check(batch, seq)
        seq += batch.num_rows
    seconds = time.monotonic() - began
    assert seq == events, f"{seq} of {events} events came back"
    journal.close()
    shutil.rmtree(place / ID)
    return seconds
