"""Routes partitions to inputs by name. A flow whose sources have changed still reads the unread
events of its former sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import (
    FindingCuts,
    Gone,
    LeavingOut,
    Paced,
    Parts,
    Positions,
    Range,
    Reach,
    Split,
    Standstill,
)
from flumeng.connectors.ranged.reading import Admitting, Filtering, Reader
from flumeng.control.snapshot.partitions import input_of
from flumeng.platform.errors import UserError

UNKNOWN = "this version of flumeng cannot read such partitions: upgrade flumeng"


class Input(Protocol):
    """One kind of input for all tasks: settings limit connections, threads, watches per process."""

    def positions(self, wake: Callable[[], None]) -> Positions:
        """Return one task's positions. ``wake``, called after possible changes, only enqueues."""

    def reader(self, spec: FlowSpec) -> Reader | None:
        """Return the flow's reader of such partitions; None without such a source."""


@runtime_checkable
class FilteringInput(Protocol):
    """An ``Input`` whose events another site may filter."""

    def reader_behind(self, spec: FlowSpec, filters: str) -> Reader | None:
        """Return the flow's reader of events behind these ``filters``, see ``Filtering``."""


class Inputs:
    """Delegates to the input of each partition. ``by_name``: inputs by the name that ``input_of``
    returns. ``installed``: creates a plug-in's input at its first use."""

    def __init__(
        self,
        by_name: Mapping[str, Input],
        installed: Callable[[str], Input | None] = lambda _: None,
    ) -> None:
        self._by_name = dict(by_name)
        self._installed = installed

    def positions(self, wake: Callable[[], None]) -> RoutedPositions:
        return RoutedPositions(self._by_name, wake)

    def reader(self, spec: FlowSpec, filters: str = "") -> RoutedReader:
        """Return the flow's reader. ``filters``: those of another site with which a batch is to be
        repeated; "" for the current ones. Raises UserError when a source cannot be loaded."""
        for part in spec.partitioned:
            if part.name not in self._by_name and (created := self._installed(part.name)):
                self._by_name[part.name] = created
        readers = {
            name: each.reader_behind(spec, filters)
            if filters and isinstance(each, FilteringInput)
            else each.reader(spec)
            for name, each in self._by_name.items()
        }
        return RoutedReader({name: each for name, each in readers.items() if each is not None})


class RoutedPositions:
    """``Positions`` of all inputs; those of an input are created with its first partition."""

    def __init__(self, inputs: Mapping[str, Input], wake: Callable[[], None]) -> None:
        self._inputs = inputs
        self._wake = wake
        self._spec: FlowSpec | None = None
        self._opened: dict[str, Positions] = {}
        self._partitions: frozenset[str] = frozenset()
        self._shares: dict[str, frozenset[str]] = {}
        self._unknown: dict[str, Reach] = {}

    def open(self, spec: FlowSpec) -> None:
        self._spec = spec
        for positions in self._opened.values():
            positions.open(spec)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        names = frozenset(partitions)
        if names != self._partitions:
            self._share_out(names)
        if len(self._shares) == 1 and not self._unknown:
            ((name, share),) = self._shares.items()
            return self._opened[name].of(share)
        reaches = dict(self._unknown)
        for name, share in self._shares.items():
            reaches |= self._opened[name].of(share)
        return reaches

    def leave_out(self, parts: Parts) -> None:
        self._share_out(frozenset(parts))
        for name, share in self._shares.items():
            positions = self._opened[name]
            if isinstance(positions, LeavingOut):
                positions.leave_out({partition: parts[partition] for partition in share})

    def rests(self) -> bool:
        """Return whether all inputs rest; a flow that still reads former sources does not."""
        opened = self._opened.values()
        return bool(opened) and all(isinstance(it, Paced) and it.rests() for it in opened)

    def rate(self) -> int:
        """Return the lowest limit of the inputs."""
        paced = (it.rate() for it in self._opened.values() if isinstance(it, Paced))
        return min(filter(None, paced), default=0)

    def find_cut(self, partition: str, offset: int, leader_epoch: int) -> Future[Gone | None]:
        positions = self._opened[input_of(partition)]
        assert isinstance(positions, FindingCuts), f"{partition} has leaders"
        return positions.find_cut(partition, offset, leader_epoch)

    def refresh(self, partitions: Collection[str]) -> None:
        for name, share in self._by_input(partitions).items():
            if name in self._opened:
                self._opened[name].refresh(share)

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        return self._opened[input_of(partition)].probe(partition, address, start, end)

    def describe(self, standstill: Standstill) -> str:
        positions = self._opened.get(input_of(standstill.partition))
        if positions is None:
            return f"partition {standstill.partition} stands still: {standstill.why}"
        return positions.describe(standstill)

    def close(self) -> None:
        for positions in self._opened.values():
            positions.close()
        self._opened, self._shares, self._unknown = {}, {}, {}
        self._partitions = frozenset()

    def _share_out(self, partitions: frozenset[str]) -> None:
        assert self._spec is not None, "not opened"
        shares = self._by_input(partitions)
        unknown = [shares.pop(name) for name in shares.keys() - self._inputs.keys()]
        trouble = Reach("", 0, trouble=UNKNOWN)
        for name in self._opened.keys() - shares.keys():
            self._opened.pop(name).close()
        for name in shares.keys() - self._opened.keys():
            self._opened[name] = self._inputs[name].positions(self._wake)
            self._opened[name].open(self._spec)
        self._partitions, self._shares = partitions, shares
        self._unknown = dict.fromkeys((name for some in unknown for name in some), trouble)

    def _by_input(self, partitions: Collection[str]) -> dict[str, frozenset[str]]:
        shares: defaultdict[str, set[str]] = defaultdict(set)
        for name in partitions:
            shares[input_of(name)].add(name)
        return {name: frozenset(share) for name, share in shares.items()}


@dataclass(frozen=True)
class RoutedReader:
    """``Reader`` of the partitions of all inputs. Columns that only other inputs have are null."""

    by_name: Mapping[str, Reader]

    @property
    def schema(self) -> pa.Schema:
        schemas = [reader.schema for reader in self.by_name.values()]
        return schemas[0] if len(schemas) == 1 else pa.unify_schemas(schemas)

    @property
    def modules(self) -> frozenset[str]:
        return frozenset().union(*(reader.modules for reader in self.by_name.values()))

    @property
    def filters(self) -> str:
        return ",".join(filter(None, (reader.filters for reader in self._filtering)))

    @property
    def outdated(self) -> bool:
        return any(reader.outdated for reader in self._filtering)

    @property
    def _filtering(self) -> list[Filtering]:
        return [each for each in self.by_name.values() if isinstance(each, Filtering)]

    def credentials(self) -> Hashable:
        return tuple(reader.credentials() for reader in self._admitting.values())

    def admitted(self, splits: Sequence[Split], addresses: Mapping[str, str]) -> dict[str, str]:
        admitted = dict(addresses)
        for name, reader in self._admitting.items():
            mine = [tuple(p for p in split if input_of(p.partition) == name) for split in splits]
            admitted |= reader.admitted(mine, addresses)
        return admitted

    @property
    def _admitting(self) -> dict[str, Admitting]:
        return {n: each for n, each in self.by_name.items() if isinstance(each, Admitting)}

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        reader = self.by_name.get(input_of(piece.partition))
        if reader is None:
            raise UserError(f"the flow no longer has a source that can read {piece.partition}")
        batches = reader.read(piece, address)
        schema = self.schema
        return batches if reader.schema is schema else (fit(batch, schema) for batch in batches)


def fit(events: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``events`` with all columns of ``schema``; those that the events lack are null."""
    own = set(events.schema.names)
    columns = [
        events.column(field.name) if field.name in own else pa.nulls(events.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
