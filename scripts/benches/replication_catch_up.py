"""How fast a new, empty replica of a journal gets all that its primary holds, and how long senders
wait meanwhile.

The primary's worker and the replica's are processes on one disk, as in ``replication_rates``. For
``mb_per_second`` the primary takes no events meanwhile. What it holds has just been written, so it
is read from the page cache. Timed is from when the primary is told of the node that is to hold a
replica until the replica is in sync; bytes are those of the frames as they lie on disk.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median

from benches.replica_workers import FLOW, ReplicaWorkers
from benches.replication_rates import ACK_CONNECTIONS, NAMES, p99_ms, place
from benches.senders import LINE_BYTES, Sender
from flumeng.journal.log.segment import SUFFIX

ROUND_LINES = 100_000
BESIDE_SECONDS, BESIDE_MB = 8, 400
"""For so long senders are looked at, at most, and a replica does not get so much in that time."""


def mb_per_second(megabytes: int, rounds: int) -> dict[str, float]:
    """The median of so many new replicas, of a journal with about so many megabytes."""
    with place() as folder:
        group = ReplicaWorkers(folder, ("n1",), ("n1",))
        group.run('syslog: {listen: "127.0.0.1:0"}', durability="replicated")
        held = _fill(group, folder, megabytes)
        rates = [_caught_up(group, f"replica{number}", held) for number in range(rounds)]
        group.stop()
    return {"catch_up_mb": round(held / 1e6, 1), "catch_up_mb_per_second": round(median(rates), 1)}


def ack_ms_p99(seconds: int, rate: int) -> float:
    """As ``replication_rates.ack_ms_p99``, of two replicas, while a third one catches up."""
    with place() as folder:
        group = ReplicaWorkers(folder, NAMES[:2], NAMES[:2])
        source = 'syslog: {listen: "127.0.0.1:0"}\n  - http: {listen: "127.0.0.1:0"}'
        group.run(source, durability="replicated", min_in_sync=2)
        _fill(group, folder, BESIDE_MB)
        group.add(NAMES[2])
        events = rate * min(seconds, BESIDE_SECONDS)
        listen = group.first.task(FLOW)["listen"][1]
        sender = Sender("paced_posts", listen, events, ACK_CONNECTIONS, rate)
        sender.go()
        group.hold(*NAMES)
        delays = sender.result()["delays"]
        assert group.in_sync == 2, "the replica was there before the last event"
        group.stop()
        return p99_ms(delays)


def _fill(group: ReplicaWorkers, folder: Path, megabytes: int) -> int:
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


def _has(group: ReplicaWorkers, events: int) -> bool:
    return sum(position.safe for position in group.first.client.positions().values()) >= events


def _caught_up(group: ReplicaWorkers, name: str, held: int) -> float:
    """Megabytes a second; the replica and its worker are gone then."""
    group.add(name)
    began = time.monotonic()
    group.hold("n1", name)
    ended = group.until(lambda: group.in_sync == 2, "the replica in sync")
    group.hold("n1")
    group.remove(name)
    return held / 1e6 / (ended - began)
