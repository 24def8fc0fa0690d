"""What it costs to remember millions of objects: memory, and the time of a look at all of them.

Pages of objects that lie nowhere are met and added as a listing does, with ``order: any``; what
was seen is kept in files on the disk, and a queue in a store in memory names them. Then it is read
back, as whoever takes the queue does, and all pages are met once more, of which nothing is new.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benches.processes import peak_rss_mb, rss_mb
from flumeng.connectors.objects.pages import PAGE, Listed
from flumeng.connectors.objects.queue_log import QueueLog
from flumeng.connectors.objects.seen_hashes import LARGE
from flumeng.connectors.objects.seen_objects import Seen, seen
from flumeng.control.zookeeper import ABSENT, tree
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records

PATH = "/in/*/*"
APPENDED_PAGES = 8
FLOW = "bench"


def run(objects: int = 10_000_000) -> dict[str, object]:
    """The module says what is measured. Seconds are those of a processor."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        store = FakeStore(FakeTree())
        tree.init(store)
        store.write(paths.flow(FLOW), records.Flow(revision=1), ABSENT)
        before = _resident()
        clock = time.process_time()
        listing = sum(len(page) for page in _pages(objects)) and time.process_time() - clock

        log, known = _taken(store, place)
        clock = time.process_time()
        for number, page in enumerate(_pages(objects), 1):
            new = known.new(PATH, page)
            assert len(new) == len(page), "an object has the hash of another one"
            known.add(PATH, new)
            if number % APPENDED_PAGES == 0:
                log.append({}, known.changed())
        log.append({}, known.changed())
        added = time.process_time() - clock
        del log, known

        clock = time.process_time()
        _, known = _taken(store, place)
        taken = time.process_time() - clock
        after = _resident()
        clock = time.process_time()
        assert not any(known.new(PATH, page) for page in _pages(objects))
        known.passed([PATH], 0)
        assert not known.changed()
        looked = time.process_time() - clock
        files = [path.stat().st_size for path in place.glob("*/*")]
    return {
        "objects": objects,
        "add_seconds": round(added - listing, 1),
        "take_seconds": round(taken, 1),
        "look_seconds": round(looked - listing, 1),
        "resident_mb": round(after - before),
        "peak_resident_mb": round(peak_rss_mb(os.getpid()) - before),
        "files": len(files),
        "files_mb": round(sum(files) / 1e6, 1),
    }


def _pages(objects: int) -> Iterator[list[Listed]]:
    for first in range(0, objects, PAGE):
        yield [
            Listed(f"/in/{number // PAGE:05}/access-{number:08}.log", number, number)
            for number in range(first, min(first + PAGE, objects))
        ]


def _taken(store: FakeStore, place: Path) -> tuple[QueueLog, Seen]:
    rules = "order any, rewritten read"
    log = QueueLog.take(store, FLOW, 1, 1, rules, seen_in=str(place))
    buckets = log.seen()
    return log, seen("any", rewritten=True, window_seconds=1.0, buckets=buckets, sizes=LARGE)


def _resident() -> float:
    return rss_mb(os.getpid())
