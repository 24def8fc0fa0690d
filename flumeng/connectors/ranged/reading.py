"""The first stage of every batch: an executor reads its split, range by range.

The split has all that the reader needs, neither ZooKeeper nor configuration. A range comes whole
and checked, or the Spark task fails soon with the partition and the offset.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Range, Split, UnreadableError
from flumeng.events import identity
from flumeng.platform import secrets
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.options.locations import Credentials
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.scrubbing import Secret

OptionsT = TypeVar("OptionsT")
Secrets = tuple[tuple[str, Secret], ...]
"""References, and their secrets."""


class Reader(Protocol):
    """Reads partitions; pickled, and thread-safe."""

    @property
    def schema(self) -> pa.Schema:
        """READ_SCHEMA, then columns of this input."""

    @property
    def modules(self) -> frozenset[str]:
        """Modules imported only where it reads, to be imported ahead."""

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """The events of ``piece`` in the order of their offsets, in ``schema``; ``address`` is that
        of the partition's ``Reach``. No batch is empty.

        ``journal`` and ``seq`` are the partition and the offset: an event's identity for good.
        Raises CorruptError, UnavailableError and UserError, after a bounded time.
        """


def source_of(spec: FlowSpec, kind: type[OptionsT]) -> OptionsT | None:
    """The options of the flow's source of this kind; None when it has none."""
    options = (part.options for part in spec.partitioned)
    return next((one for one in options if isinstance(one, kind)), None)


def resolved(credentials: Credentials | None) -> Secrets:
    """The secrets of ``credentials``, which executors cannot look up. Raises UserError."""
    given = credentials.given.values() if credentials else ()
    return tuple((one, secrets.resolve(one)) for one in given if SECRET.fullmatch(one))


@runtime_checkable
class Admitting(Protocol):
    """A ``Reader`` whose servers may ask executors for a token; called in the driver."""

    def credentials(self) -> Hashable:
        """The credentials it is pickled with; when they change, a pickled reader is useless."""

    def admitted(self, splits: Sequence[Split], addresses: Mapping[str, str]) -> dict[str, str]:
        """The addresses for ``splits``, with what admits executors for some minutes."""


def bounds(splits: Sequence[Split]) -> dict[str, tuple[int, int]]:
    """Partition -> [start, end) of its ranges together."""
    found: dict[str, tuple[int, int]] = {}
    for piece in itertools.chain.from_iterable(splits):
        start, end = found.get(piece.partition, (piece.start, piece.end))
        found[piece.partition] = min(start, piece.start), max(end, piece.end)
    return found


@functools.cache
def _freeze_modules() -> None:
    """Exclude loaded modules from the garbage collection after each task of Spark's Python workers,
    which takes 50 ms otherwise."""
    gc.freeze()


@dataclass(frozen=True)
class ReadSplits:
    """``addresses``: by partition. ``identified``: with the columns of ``events.identity``."""

    reader: Reader
    splits: tuple[Split, ...]
    addresses: Mapping[str, str]
    identified: bool = False

    @property
    def schema(self) -> pa.Schema:
        schema = self.reader.schema
        return identity.with_identity(schema) if self.identified else schema

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes batches of split numbers, gives ``schema``."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                events = self._read(self.splits[number])
                if self.identified:
                    events = (identity.identify(part, number) for part in events)
                yield from events
        _freeze_modules()

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        for piece in split:
            offset = piece.start
            try:
                for batch in self.reader.read(piece, self.addresses[piece.partition]):
                    yield batch
                    offset = batch.column("seq")[-1].as_py() + 1
            except (CorruptError, UserError, UnavailableError) as error:
                damaged = not isinstance(error, UnavailableError)
                raise UnreadableError(
                    piece.partition, offset, str(error), damaged=damaged
                ) from error
