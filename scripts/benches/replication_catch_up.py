"""How fast a new, empty copy of a journal gets all that its primary holds.

The primary's worker and the copy's are processes on one disk, as in ``replication_rates``; the
primary takes no events meanwhile. What it holds has just been written, so it is read from the page
cache. Timed is from when the primary is told of the node that is to hold a copy until the copy is
in sync; bytes are those of the frames as they lie on disk.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median

from benches.copy_workers import FLOW, CopyWorkers
from benches.replication_rates import place
from benches.senders import LINE_BYTES, Sender
from flumeng.journal.segment import SUFFIX

ROUND_LINES = 10_000


def mb_per_second(megabytes: int, rounds: int) -> dict[str, float]:
    """The median of so many new copies, of a journal with about so many megabytes."""
    with place() as folder:
        group = CopyWorkers(folder, ("n1",), ("n1",))
        group.run('syslog: {listen: "127.0.0.1:0"}', durability="replicated")
        held = _fill(group, folder, megabytes)
        rates = [_caught_up(group, f"copy{number}", held) for number in range(rounds)]
        group.stop()
    return {
        "catch_up_mb": round(held / 1e6, 1),
        "catch_up_mb_per_second": round(median(rates), 1),
    }


def _fill(group: CopyWorkers, folder: Path, megabytes: int) -> int:
    """Until there are so many bytes; gives how many."""
    listen = group.first.task(FLOW)["listen"][0]
    events = held = 0
    while held < megabytes * 1_000_000:
        missing = megabytes * 1_000_000 - held
        lines = max(1, missing // LINE_BYTES // ROUND_LINES) * ROUND_LINES
        sender = Sender("stream", listen, lines)
        sender.go()
        sender.result()
        events += lines
        group.until(partial(_has, group, events), "what was sent")
        held = sum(path.stat().st_size for path in (folder / "n1").rglob(f"*{SUFFIX}"))
    return held


def _has(group: CopyWorkers, events: int) -> bool:
    return sum(position.safe for position in group.first.client.positions().values()) >= events


def _caught_up(group: CopyWorkers, name: str, held: int) -> float:
    """Megabytes a second; the copy and its worker are gone then."""
    group.add(name)
    began = time.monotonic()
    group.hold("n1", name)
    ended = group.until(lambda: group.in_sync == 2, "the copy in sync")
    group.hold("n1")
    group.remove(name)
    return held / 1e6 / (ended - began)
