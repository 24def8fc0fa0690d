"""The smallest contract of an input: list partitions, say how far they reach, read a range.

``flumeng.connectors.ranged.runtime`` does all else for such an input: it registers partitions,
polls their ends, backs off, probes, and turns errors into sentences for operators. An input that
needs more (leader epochs, work queues) implements ``Finder``, ``Input`` and ``Reader`` itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa


@dataclass(frozen=True)
class Ends:
    """A partition can be read from offset ``first`` up to, and without, ``end``. One that is
    ``closed`` takes no more events. ``incarnation``: the one that these ends are of, where a
    partition can be replaced between ``list`` and ``read``; events that were read of another one
    are then not used."""

    first: int
    end: int
    closed: bool = False
    incarnation: str = ""


class RangedInput(ABC):
    """A source whose partitions are read in exact ranges of offsets, which only grow.

    It is made from its options in the discovery process, in the collector and in executors, and
    touches no server while it is made. Its methods may be called by several threads at once. They
    take a bounded time, and raise UnavailableError when the server does not answer, UserError when
    a person has to change something, CorruptError when what is there makes no sense.
    """

    name: ClassVar[str]
    """The name of the source in flows. It ends the names of partitions in ZooKeeper."""

    schema: ClassVar[pa.Schema] = pa.schema([])
    """Columns that its events have besides ``body``, ``ts``, ``host`` and ``attrs``."""

    @abstractmethod
    def __init__(self, options: Any) -> None:
        """Keep the options; acquire nothing yet."""

    @abstractmethod
    def list(self) -> Mapping[str, str]:
        """All partitions, each with its incarnation. The discovery task calls it every
        ``discovery_seconds`` of the options.

        A name has 1 to 150 characters, of which each one but letters, digits, ``.``, ``_`` and
        ``-`` counts five for a byte. An incarnation is 1 to 30 letters, digits, ``_`` and ``-``; a
        partition that was made again with other events at its offsets has another one, so that no
        ack is taken for one of those. A partition that is no longer listed is finished: list it
        for as long as it has events to read.
        """

    @abstractmethod
    def ends(self, partitions: Collection[str]) -> Mapping[str, Ends]:
        """How far these partitions reach now; lacks those that do not say. Called about every
        second while tasks read them, for all of them at once."""

    @abstractmethod
    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The events of [``start``, ``end``), in the order of their offsets, in an executor.

        Each batch has a column ``seq``, the offsets as int64, and any of ``body`` (binary), ``ts``
        (timestamp in UTC), ``host``, ``attrs`` and the columns of ``schema``; a missing one is
        null, ``ts`` is then the time of reading. The same range gives the same events whenever it
        is read, until it is acked.
        """

    def close(self) -> None:  # noqa: B027  an input without connections has none to close
        """Let go of connections. Called in the discovery process when the task has ended, and in
        executors after each range."""
