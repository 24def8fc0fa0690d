"""Events and batches for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import READ_SCHEMA

JOURNAL = "contract.host.0.aaaaaaaa"


def events(bodies: Sequence[bytes], first: int = 0) -> pa.RecordBatch:
    """Return events of one journal with these bodies, numbered from ``first`` on."""
    count = len(bodies)
    return pa.RecordBatch.from_pydict(
        {
            "body": bodies,
            "ts": range(first, first + count),
            "host": ["h"] * count,
            "attrs": [[("source", "contract")]] * count,
            "journal": [JOURNAL] * count,
            "seq": range(first, first + count),
            "replayed": [False] * count,
        },
        schema=READ_SCHEMA,
    )


def no_session() -> None:
    """Fail in place of opening a Spark session. Raises AssertionError."""
    raise AssertionError("the component uses Spark: its stages must be Arrow stages")


def batch(schema: pa.Schema = READ_SCHEMA, *, identified: bool = False) -> LazyBatch:
    """Return a batch without stages; ``identified``: with the identity columns."""
    given = identity.with_identity(schema) if identified else schema
    return LazyBatch(no_session, 1, None, (), given)  # type: ignore[arg-type]


def run(stages: LazyBatch, splits: Iterable[Sequence[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """Return the output of a batch's stages, split by split."""
    stage = stages.all_arrow
    assert stage is not None, "all stages must be Arrow stages"
    return [out for split in splits for out in stage(iter(split))]


def identified(given: pa.RecordBatch, split: int = 0) -> pa.RecordBatch:
    """Return the events with the identity columns."""
    return identity.identify(given, split)
