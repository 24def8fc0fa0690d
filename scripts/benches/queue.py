"""Objects: how fast they are listed into a queue, what that costs ZooKeeper, how fast they are
read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from benches import queue_listing, queue_reading


def run(
    *,
    objects: int = 1_000_000,
    s3_objects: int = 20_000,
    gzip_objects: int = 16,
    gzip_lines: int = 300_000,
    small_objects: int = 10_000,
    small_bytes: int = 10_000,
) -> dict[str, object]:
    """The modules ``benches.queue_listing`` and ``benches.queue_reading`` say what is measured."""
    measures: list[Callable[[Path], dict[str, object]]] = [
        lambda place: queue_listing.local(place, objects),
        lambda place: queue_listing.s3(place, s3_objects),
        lambda place: queue_reading.measure(
            place, (gzip_objects, gzip_lines), (small_objects, small_bytes)
        ),
    ]
    found: dict[str, object] = {}
    for measure in measures:
        with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
            found |= measure(Path(folder))
    return found
