"""First stage of each batch: an executor reads its split, range by range, without ZooKeeper or
configuration. A range arrives whole and checked, or the task fails with partition and offset."""

from __future__ import annotations

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
from flumeng.platform.garbage_collection import freeze_modules
from flumeng.platform.options.locations import Credentials
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.scrubbing import Secret

OptionsT = TypeVar("OptionsT")
Secrets = tuple[tuple[str, Secret], ...]
"""Pairs of reference and secret."""


class Reader(Protocol):
    """Reads partitions; pickled, and thread-safe."""

    @property
    def schema(self) -> pa.Schema:
        """READ_SCHEMA, then the additional columns of this input."""

    @property
    def modules(self) -> frozenset[str]:
        """Modules that executors import before the first read, because only reading needs them."""

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yield the events of ``piece`` in offset order, in ``schema``, in non-empty batches.
        ``journal`` and ``seq``, partition and offset, are an event's permanent identity. Raises
        CorruptError, UnavailableError and UserError, after a bounded time, also when events are
        missing at the end: callers cannot tell that from a gap."""


def source_of(spec: FlowSpec, kind: type[OptionsT]) -> OptionsT | None:
    """Return the options of the flow's source of this kind; None when the flow has none."""
    sources = (part.options for part in spec.partitioned)
    return next((options for options in sources if isinstance(options, kind)), None)


def resolved(credentials: Credentials | None) -> Secrets:
    """Return the secrets, which executors cannot look up. Raises UserError when one is missing."""
    given = credentials.given.values() if credentials else ()
    return tuple((ref, secrets.resolve(ref)) for ref in given if SECRET.fullmatch(ref))


@runtime_checkable
class Admitting(Protocol):
    """A ``Reader`` whose servers may require a token of executors. Called in the driver."""

    def credentials(self) -> Hashable:
        """Return credentials pickled with the reader; a change makes a pickled reader useless."""

    def admitted(self, splits: Sequence[Split], addresses: Mapping[str, str]) -> dict[str, str]:
        """Return addresses for ``splits``, with tokens that admit executors for some minutes."""


@runtime_checkable
class Filtering(Protocol):
    """A ``Reader`` of events that another site filters for it. Used in the driver."""

    @property
    def filters(self) -> str:
        """The name of those filters: the same name gives the same events; "" without any."""

    @property
    def outdated(self) -> bool:
        """Whether the site has other filters by now."""


def bounds(splits: Sequence[Split]) -> dict[str, tuple[int, int]]:
    """Return the lowest start and the highest end of each partition's ranges."""
    ranges: dict[str, tuple[int, int]] = {}
    for piece in itertools.chain.from_iterable(splits):
        start, end = ranges.get(piece.partition, (piece.start, piece.end))
        ranges[piece.partition] = min(start, piece.start), max(end, piece.end)
    return ranges


@dataclass(frozen=True)
class ReadSplits:
    """Stage reading splits. ``addresses``: by partition. ``identified``: adds identity columns."""

    reader: Reader
    splits: tuple[Split, ...]
    addresses: Mapping[str, str]
    identified: bool = False

    @property
    def schema(self) -> pa.Schema:
        schema = self.reader.schema
        return identity.with_identity(schema) if self.identified else schema

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the events, in ``schema``, of the splits whose numbers the batches contain."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                events = self._read(self.splits[number])
                if self.identified:
                    events = (identity.identify(part, number) for part in events)
                yield from events
        freeze_modules()

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
