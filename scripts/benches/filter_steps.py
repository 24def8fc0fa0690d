"""The filters that change columns and rows, for ``bench filters``: a stage and its events each."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pyarrow as pa
from mmdb_writer import MMDBWriter
from netaddr import IPSet

from flumeng.events.lazy_batch import Stage
from flumeng.filters.aggregate import AggregateStage
from flumeng.filters.explode import ExplodeStage
from flumeng.filters.geoip import GeoipStage
from flumeng.filters.key_counts import FirstOfKey
from flumeng.filters.options import templates
from flumeng.filters.options.aggregate import value
from flumeng.filters.personal_data import FINDERS
from flumeng.filters.python import PythonStage
from flumeng.filters.redact import RedactStage
from flumeng.filters.rename import RenameStage
from flumeng.filters.sample import SampleStage
from flumeng.filters.set import SetStage
from flumeng.filters.time import TimeStage
from flumeng.platform.scrubbing import Secret

BEGAN = datetime(2026, 11, 9, 12, tzinfo=UTC)
KEY = Secret("a key of the bench")


def stages(events: pa.RecordBatch) -> Mapping[str, Stage]:
    text = pa.field("place", pa.string())
    item = pa.field("item", pa.int64())
    without_items = [field for field in events.schema if field.name != "items"]
    return {
        "time_iso8601": TimeStage("iso", "ts", ("iso8601",), "UTC"),
        "time_pattern": TimeStage("german", "at", ("%d.%m.%Y %H:%M:%S,%f",), "Europe/Berlin"),
        "time_unix_ms": TimeStage("millis", "at", ("unix_ms",), "UTC"),
        "set_text": SetStage(
            (("place", templates.parse("{host}-{client}")),), events.schema.append(text)
        ),
        "set_attribute": SetStage((("attrs.a", templates.parse("b")),), events.schema),
        "rename": RenameStage(events.schema),
        "redact_kinds_in_text": _redact("body", "email ipv4 ipv6 card", "mask"),
        "redact_hash_column": _redact("client", "", "hash"),
        "sample": SampleStage(("journal", "seq"), 0.1),
        "sample_by_key": SampleStage(("iso",), 0.1),
        "limit": FirstOfKey(("client",), 100, 1.0),
        "dedupe": FirstOfKey(("iso", "client"), 1, None),
        "aggregate": _aggregate({"n": "count", "last": "max(seq)"}),
        "aggregate_histogram": _aggregate({"n": "count", "sizes": "histogram(seq)"}),
        "explode_4": ExplodeStage("items", pa.schema([*without_items, item])),
        "geoip": GeoipStage("client", _database(), (("country",),), pa.schema([text])),
        "python": PythonStage(f"{__name__}:unchanged", {}, events.schema),
    }


def _aggregate(values: Mapping[str, str]) -> Stage:
    made = tuple((name, value(text)) for name, text in values.items())
    return AggregateStage(("client",), made, 60_000_000)


def _redact(columns: str, kinds: str, mode: str) -> Stage:
    finders = tuple(FINDERS[kind] for kind in kinds.split())
    return RedactStage(tuple(columns.split()), finders, mode, KEY)


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@cache
def events(count: int) -> pa.RecordBatch:
    """Bodies of about 200 bytes, of which one in four has what is private in it."""
    times = [BEGAN + timedelta(milliseconds=13 * n) for n in range(count)]
    private = (" from bob@example.com at 192.0.2.7 with 4111 1111 1111 1111", "", "", "")
    bodies = [f"request {n}{private[n % 4]} was served".ljust(200, ".") for n in range(count)]
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([body.encode() for body in bodies], pa.binary()),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "host": pa.array(["web1"] * count),
            "attrs": pa.array([[("source", "tail")]] * count, pa.map_(pa.string(), pa.string())),
            "journal": pa.array(["web.n1.0.aaaaaaaa"] * count),
            "seq": pa.array(range(count), pa.int64()),
            "iso": pa.array([time.isoformat() for time in times]),
            "german": pa.array([time.strftime("%d.%m.%Y %H:%M:%S,%f") for time in times]),
            "millis": pa.array([1_794_000_000_000 + n for n in range(count)], pa.int64()),
            "client": pa.array([f"1.2.{n % 40}.{n % 250}" for n in range(count)]),
            "items": pa.array([[n, 1, 2, 3] for n in range(count)], pa.list_(pa.int64())),
        }
    )


@cache
def _database() -> str:
    writer = MMDBWriter(4, "Bench")
    writer.insert_network(IPSet(["1.2.0.0/16"]), {"country": "DE"})
    path = Path(tempfile.mkdtemp()) / "bench.mmdb"
    writer.to_db_file(str(path))
    return str(path)
