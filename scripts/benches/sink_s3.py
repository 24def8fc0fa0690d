"""Files on an S3 server of this host beside files on its disk: the same journal, the same
collector, the same rows in Parquet with zstd, exactly once.

``s3_ratio`` is events a second over those on the disk. Each runs twice, in turns, and its better
run counts. The server is versitygw where it is to be had (Go builds it once), else moto's, which
is slow itself; ``s3_server`` says which. Server and collector share the machine. The events that
the lakes have in the end are counted.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow.dataset as ds
from pyarrow import fs

from benches import collecting
from tests.testkit.servers.s3 import RealS3, build

TURNS = 2


def measure(events: int) -> dict[str, object]:
    build()
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        server = RealS3(place / "s3")
        server.start()
        os.environ |= {
            "FLUMENG_SECRET_LAKE_ID": server.access_key,
            "FLUMENG_SECRET_LAKE_KEY": server.secret_key,
        }
        try:
            best = _compared(place, server, events)
        finally:
            server.stop()
    return {
        "s3_disk_events_per_second": round(best["disk"]),
        "s3_events_per_second": round(best["s3"]),
        "s3_ratio": round(best["s3"] / best["disk"], 2),
        "s3_server": "versitygw" if server.keeps else "moto",
    }


def _compared(place: Path, server: RealS3, events: int) -> Mapping[str, float]:
    collecting.fill(place / "journals" / "0", events)
    keys = 'credentials: {access_key: "${secret:lake-id}", secret_key: "${secret:lake-key}"}'
    best = {"disk": 0.0, "s3": 0.0}
    for turn in range(TURNS):
        lakes: dict[str, tuple[str, str, fs.FileSystem]] = {
            "disk": (f'path: "{place}/{turn}"', f"{place}/{turn}", fs.LocalFileSystem()),
            "s3": (
                f'path: "{server.location(str(turn))}", {keys}',
                f"{server.bucket}/{turn}",
                server.files,
            ),
        }
        for name, (options, path, files) in lakes.items():
            sink = f"files: {{{options}}}"
            found = collecting.measure(place, f"{name}{turn}", "exactly-once", sink, events)
            rows = ds.dataset(path, filesystem=files, format="parquet").count_rows()
            assert rows == events, f"{rows} of {events} in {name}"
            best[name] = max(best[name], found["rate"])
    return best
