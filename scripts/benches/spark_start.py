"""From the start of a collector's process to its first ack, on ``local[2]``.

It holds the start of Spark, the first claim and the first, cold batch of 20,000 events into Parquet
files. The median of three processes counts; the archive of classes is there, as it is for a
collector that has run before.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median

from benches import collecting

TURNS = 3
LOCAL = ["--spark", json.dumps({"master": "local[2]"})]


def measure(_events: int = 0) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        collecting.fill(place / "journals" / "0", collecting.FRAME_EVENTS)
        seconds = []
        for turn in range(TURNS):
            sink = f'files: {{path: "{place / "lake"}"}}'
            flow = f"turn{turn}"
            seconds.append(
                collecting.first_ack_seconds(place, flow, "exactly-once", sink, more=LOCAL)
            )
    return {"first_batch_seconds": round(median(seconds), 2)}
