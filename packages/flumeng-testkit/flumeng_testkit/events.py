"""Events as a batch has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import READ_SCHEMA

JOURNAL = "contract.host.0.aaaaaaaa"


def events(bodies: Sequence[bytes], first: int = 0) -> pa.RecordBatch:
    """Events of one journal with these bodies, numbered from ``first`` on."""
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
    """In place of a Spark session. Raises AssertionError."""
    raise AssertionError("the component asks for Spark: a stage in Arrow needs none")


def batch(schema: pa.Schema = READ_SCHEMA, *, identified: bool = False) -> LazyBatch:
    """A batch without stages; ``identified`` as for a component that is."""
    given = identity.with_identity(schema) if identified else schema
    return LazyBatch(no_session, 1, None, (), given)  # type: ignore[arg-type]


def run(stages: LazyBatch, splits: Iterable[Sequence[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """What comes out of the stages of a batch, split by split."""
    found = stages.all_arrow
    assert found is not None, "a stage is not in Arrow"
    return [out for split in splits for out in found(iter(split))]


def identified(given: pa.RecordBatch, split: int = 0) -> pa.RecordBatch:
    """The events with the columns that say which event a row is."""
    return identity.identify(given, split)
