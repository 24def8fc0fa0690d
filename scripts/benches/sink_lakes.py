"""Tables of Delta and Iceberg beside plain files: the same journal, the same collector, the same
rows in Parquet with zstd, exactly once.

``delta_ratio`` and ``iceberg_ratio`` are events a second over those of ``files``. Each of the three
runs twice, in turns, and its better run counts: all three wait for the same disk. What a table has
in the end is counted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from benches import collecting

TURNS = 2


def measure(events: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        collecting.fill(place / "journals" / "0", events)
        rates: dict[str, list[float]] = {"files": [], "delta": [], "iceberg": []}
        for turn in range(TURNS):
            for name, of in rates.items():
                here = place / f"lake-{name}-{turn}"
                here.mkdir()
                flow = f"{name}{turn}"
                found = collecting.measure(place, flow, "exactly-once", _sink(name, here), events)
                assert (rows := _rows(name, here)) == events, f"{rows} of {events} in {name}"
                of.append(found["rate"])
    best = {name: max(of) for name, of in rates.items()}
    return {
        "lake_files_events_per_second": round(best["files"]),
        "delta_events_per_second": round(best["delta"]),
        "iceberg_events_per_second": round(best["iceberg"]),
        "delta_ratio": round(best["delta"] / best["files"], 2),
        "iceberg_ratio": round(best["iceberg"] / best["files"], 2),
    }


def _sink(name: str, place: Path) -> str:
    if name == "files":
        return f'files: {{path: "{place}"}}'
    if name == "delta":
        return f'delta: {{path: "{place}"}}'
    catalog = f'type: sql, uri: "sqlite:///{place}/catalog.db", warehouse: "{place}"'
    return f"iceberg: {{catalog: {{{catalog}}}, table: web.events}}"


def _rows(name: str, place: Path) -> int:
    if name == "files":
        return int(ds.dataset(place).count_rows())
    if name == "delta":
        return int(DeltaTable(str(place)).to_pyarrow_dataset().count_rows())
    catalog = load_catalog(
        "default", type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=str(place)
    )
    return catalog.load_table("web.events").scan().count()
