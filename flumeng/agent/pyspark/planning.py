"""Plans reads of a flow's journals: where each begins and ends, and the partitions for Spark."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from flumeng.agent.pyspark.options import Options
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.flows.flow_journals import ANSWER_SECONDS, FlowJournals
from flumeng.connectors.journals.reader import JournalReader
from flumeng.control.zookeeper import Store
from flumeng.journal.log.contract import Position
from flumeng.journal.log.errors import DataLossError
from flumeng.journal.serving import proof
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import UnavailableError
from flumeng.platform.garbage_collection import freeze_modules

log = logging.getLogger(__name__)

LEAST_EVENTS, MOST_EVENTS = 100_000, 500_000
"""Events of a partition: a task costs as much as reading some 20,000, and 500,000 take seconds."""
PARTITIONS = 16
"""So many cores share a read, unless its partitions would be smaller than the least."""
NAMED = 5

Offsets = Mapping[str, int]
"""Journal -> seq below which everything is read; 0 for a journal that is not listed."""


def limited(start: Offsets, reached: Offsets, most: int) -> dict[str, int]:
    """Return a batch's ends: at most ``most`` events (at least 1) from ``start``, up to
    ``reached``. Journals share in proportion to backlogs, so that all reach their ends together."""
    waiting = {name: max(0, end - start.get(name, 0)) for name, end in reached.items()}
    total = sum(waiting.values())
    end = dict(start)
    left = most
    for name in sorted(waiting):
        count = waiting[name]
        if total > most:
            count = min(left, -(-count * most // total))
        left -= count
        if count:
            end[name] = start.get(name, 0) + count
    return ordered(end)


def ordered(offsets: Offsets) -> dict[str, int]:
    """Sort by name, since Spark compares offsets as text; drop zeros."""
    return {name: offsets[name] for name in sorted(offsets) if offsets[name]}


def ranges(start: Offsets, end: Offsets, *, replayed: bool = False) -> list[Range]:
    return [
        Range(name, start.get(name, 0), end[name], replayed)
        for name in sorted(end)
        if start.get(name, 0) < end[name]
    ]


def partition_events(pieces: Sequence[Range]) -> int:
    total = sum(piece.end - piece.start for piece in pieces)
    return max(LEAST_EVENTS, min(MOST_EVENTS, -(-total // PARTITIONS)))


def splits(pieces: Sequence[Range], events: int) -> list[tuple[Range, ...]]:
    """Divide ranges into parts of ``events`` events; a range may be cut."""
    parts: list[list[Range]] = []
    room = 0
    for piece in pieces:
        at = piece.start
        while at < piece.end:
            if not room:
                parts.append([])
                room = events
            taken = min(room, piece.end - at)
            parts[-1].append(Range(piece.partition, at, at + taken, piece.replayed))
            at, room = at + taken, room - taken
    return [tuple(part) for part in parts]


@dataclass(frozen=True)
class Ends:
    """The ends of the journals at one moment. ``silent``: journal without an answer -> its node."""

    positions: Mapping[str, Position]
    silent: Mapping[str, str]

    @property
    def floors(self) -> dict[str, int]:
        return {name: position.floor for name, position in self.positions.items()}

    @property
    def reached(self) -> dict[str, int]:
        return {name: position.safe for name, position in self.positions.items()}

    @property
    def names(self) -> set[str]:
        return {*self.positions, *self.silent}

    def require_all(self, why: str) -> None:
        """Raise UnavailableError when a journal did not answer; ``why``: the consequence."""
        if self.silent:
            nodes = _some(set(self.silent.values()))
            raise UnavailableError(f"nodes {nodes} do not answer: {why}")


class Planning:
    """Plans reads. Raises UnavailableError without ZooKeeper, DeniedError without read access."""

    def __init__(self, options: Options, store: Store) -> None:
        self._options = options
        self._journals = FlowJournals(
            options.flow,
            store,
            lambda address: JournalClient(
                address, ANSWER_SECONDS, prove=partial(proof.of_process, "subscriber")
            ),
        )

    def read_ends(self) -> Ends:
        registered = self._journals.registered()
        positions = self._journals.positions(self._journals.addresses(registered))
        silent = {name: row.primary for name, row in registered.items() if name not in positions}
        if silent:
            self._journals.require_readable(next(iter(silent)))
        return Ends(positions, silent)

    def begin(self) -> dict[str, int]:
        """Return a new reader's start; with earliest, silent journals get their floors later."""
        ends = self.read_ends()
        if self._options.start_from == "earliest":
            return ordered(ends.floors)
        ends.require_all(
            "the ends of their journals are unknown; startFrom earliest does not need the ends"
        )
        return ordered(ends.reached)

    def partitions(
        self, start: Mapping[str, int], end: Mapping[str, int], *, replayed: bool = False
    ) -> list[InputPartition]:
        """Return Spark's partitions from ``start`` (default: a journal's floor) to ``end``. Raises
        UnavailableError for silent journals, DataLossError for gone events unless allowed."""
        names = [name for name in end if start.get(name, 0) < end[name]]
        addresses = self._journals.addresses(names)
        positions = self._journals.positions(addresses)
        silent = tuple(name for name in names if name not in positions)
        if silent:
            registered = self._journals.registered()
            self.lose([name for name in silent if name not in registered], "no longer exist")
            rest = {name: registered[name].primary for name in silent if name in registered}
            Ends({}, rest).require_all("events of their journals were planned to be read")
        floors = {name: position.floor for name, position in positions.items()}
        trimmed = [name for name in floors if name in start and start[name] < floors[name]]
        self.lose(trimmed, "no longer hold the events at the position of this reader")
        begins = {name: max(start.get(name, 0), floor) for name, floor in floors.items()}
        pieces = ranges(begins, {name: end[name] for name in begins}, replayed=replayed)
        reader = JournalReader(proof.of_process("subscriber"))
        return [
            InputPartition((reader, tuple((piece, addresses[piece.partition]) for piece in part)))
            for part in splits(pieces, partition_events(pieces))
        ]

    def lose(self, journals: Collection[str], what: str) -> None:
        """Raise DataLossError if there are ``journals``, or log when the options allow loss."""
        if not journals:
            return
        text = (
            f"events are lost for this reader: journals of flow {self._options.flow} {what}: "
            f"{_some(journals)}"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(f'{text}; option("failOnDataLoss", "false") continues without them')
        log.warning("%s", text)

    def close(self) -> None:
        self._journals.close()


def _some(names: Collection[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - NAMED} more" if len(shown) > NAMED else ""
    return f"{', '.join(shown[:NAMED])}{more}"


def read(part: InputPartition | None, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read columns of each range of a partition, in order. Spark passes a partition without value
    when the plan is empty. Raises as ``JournalClient.read``."""
    if part is None or part.value is None:
        return
    freeze_modules()
    reader: JournalReader
    reader, pieces = part.value
    for piece, address in pieces:
        for events in reader.read(piece, address):
            yield events.select(columns)
