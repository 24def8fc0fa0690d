"""What a reader of a flow finds: its journals, where each begins for it, and the parts to read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from flumeng.agent.pyspark import offsets
from flumeng.agent.pyspark.options import Options
from flumeng.connectors.flows.flow_journals import ANSWER_SECONDS, FlowJournals
from flumeng.connectors.journals.reader import JournalReader
from flumeng.control.zookeeper import Store
from flumeng.journal.log.errors import DataLossError
from flumeng.journal.log.position import Position
from flumeng.journal.serving import proof
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import UnavailableError

log = logging.getLogger(__name__)

EVENTS_PER_PARTITION = 100_000
NAMED = 5


@dataclass(frozen=True)
class Look:
    """How far the journals reach at one moment; ``silent`` are those of which nobody says it, each
    with the node that should."""

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
        """Raises UnavailableError when a journal is silent; ``why`` says what that prevents."""
        if self.silent:
            nodes = _some(set(self.silent.values()))
            raise UnavailableError(f"nodes that do not answer: {nodes}: {why}")


class Planning:
    """Of the flow that ``options`` name. Raises UnavailableError when ZooKeeper is away, and
    DeniedError when journals are not told to whom this process is."""

    def __init__(self, options: Options, store: Store) -> None:
        self._options = options
        self._journals = FlowJournals(options.flow, store, _connect)

    def look(self) -> Look:
        registered = self._journals.registered()
        found = self._journals.positions(self._journals.addresses(registered))
        silent = {name: one.primary for name, one in registered.items() if name not in found}
        if silent:
            self._journals.require_readable(next(iter(silent)))
        return Look(found, silent)

    def begin(self) -> dict[str, int]:
        """Where a reader begins that has read nothing. It names no journal that does not answer:
        such a one begins at what it keeps when it does."""
        look = self.look()
        if self._options.start_from == "earliest":
            return offsets.ordered(look.floors)
        look.require_all(
            "where their journals end now is not known: startFrom earliest needs it not"
        )
        return offsets.ordered(look.reached)

    def partitions(
        self, start: Mapping[str, int], end: Mapping[str, int], *, replayed: bool = False
    ) -> list[InputPartition]:
        """The parts of what lies between the two, for ``reading.read``. A journal that ``start``
        does not name begins at what it keeps. Raises DataLossError when something of it is gone,
        unless that is allowed."""
        names = [name for name in end if start.get(name, 0) < end[name]]
        addresses = self._journals.addresses(names)
        positions = self._journals.positions(addresses)
        silent = tuple(name for name in names if name not in positions)
        if silent:
            known = self._journals.registered()
            self.lose([name for name in silent if name not in known], "are not there any more")
            rest = {name: known[name].primary for name in silent if name in known}
            Look({}, rest).require_all("what they keep was planned to be read")
        floors = {name: position.floor for name, position in positions.items()}
        trimmed = [name for name in floors if name in start and start[name] < floors[name]]
        self.lose(trimmed, "keep nothing any more of where this reader is")
        begins = {name: max(start.get(name, 0), floor) for name, floor in floors.items()}
        wanted = offsets.ranges(begins, {name: end[name] for name in begins}, replayed=replayed)
        reader = JournalReader(proof.of_process("subscriber"))
        return [
            InputPartition((reader, tuple((piece, addresses[piece.partition]) for piece in part)))
            for part in offsets.splits(wanted, EVENTS_PER_PARTITION)
        ]

    def lose(self, journals: Collection[str], what: str) -> None:
        """Raises DataLossError when there are any, unless the options say to go on."""
        if not journals:
            return
        said = (
            f"events are lost for this reader: journals of flow {self._options.flow} {what}: "
            f"{_some(journals)}"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(f'{said}; option("failOnDataLoss", "false") goes on without them')
        log.warning("%s", said)

    def close(self) -> None:
        self._journals.close()


def _connect(address: str) -> JournalClient:
    return JournalClient(address, ANSWER_SECONDS, prove=partial(proof.of_process, "subscriber"))


def _some(names: Collection[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - NAMED} more" if len(shown) > NAMED else ""
    return f"{', '.join(shown[:NAMED])}{more}"


def read(part: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Each range whole and in order, or an error. The part's value is what reads, and ranges, each
    with the address of who serves it; Spark makes a part of nothing, too. Raises as
    ``JournalClient.read``."""
    if part is None or part.value is None:
        return
    reader: JournalReader
    reader, pieces = part.value
    for piece, address in pieces:
        yield from reader.read(piece, address)
