"""The smallest contract of an input: list partitions, their ends, read a range. Its runtime,
``connectors.ranged.runtime``, registers partitions, polls ends, backs off, probes and explains
errors. For more (leader epochs, work queues) implement ``Finder``, ``Input``, ``Reader``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa


@dataclass(frozen=True)
class Ends:
    """Readable offsets [``first``, ``end``). A ``closed`` partition gets no more events.
    ``incarnation``: that of the partition with these ends. Set it when a partition can be replaced
    between ``list`` and ``read``: events of another incarnation are then discarded."""

    first: int
    end: int
    closed: bool = False
    incarnation: str = ""


class RangedInput(ABC):
    """A source whose partitions are read in exact ranges of offsets, which only grow.

    Created in the discovery process, the collector and executors; creating it touches no server.
    Methods are called by several threads. They take a bounded time, and raise UnavailableError when
    the server does not answer, UserError when a person has to act, CorruptError for invalid data.
    """

    name: ClassVar[str]
    """The name of the source in flows, and a suffix of its partitions in ZooKeeper."""

    schema: ClassVar[pa.Schema] = pa.schema([])
    """Columns of the source's events besides ``body``, ``ts``, ``host`` and ``attrs``."""

    @abstractmethod
    def __init__(self, options: Any) -> None:
        """Keep the options; acquire nothing yet."""

    @abstractmethod
    def list(self) -> Mapping[str, str]:
        """Return all partitions, each with its incarnation; called every ``discovery_seconds``.

        A name has 1 to 150 characters; a byte that is no letter, digit, ``.``, ``_`` or ``-``
        counts five. An incarnation is 1 to 30 letters, digits, ``_`` and ``-``. A recreated
        partition has a new incarnation, so that it inherits no ack. A partition that is no longer
        listed is finished: list it for as long as it has events to read.
        """

    @abstractmethod
    def ends(self, partitions: Collection[str]) -> Mapping[str, Ends]:
        """Return readable ends, without unknown partitions. Called every 0.3 s while they change,
        else every second, and at once when a task starts, stops or needs them; with
        ``Ends.incarnation`` also after each batch that is read."""

    @abstractmethod
    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the events of [``start``, ``end``) in order. Called in an executor, or to retry a
        failed read in the collector.

        Batches have a column ``seq``, the offsets as int64, and any of ``body`` (binary), ``ts``
        (timestamp in UTC, else the time of reading), ``host``, ``attrs`` and the columns of
        ``schema``. The same range gives the same events until it is acked. Raise an error when
        some are missing: as offsets may have gaps, a range that ends early is acked as a whole.
        """

    def close(self) -> None:  # noqa: B027  an input without connections has none to close
        """Close connections. Called at the end of discovery or a probe, and after each range."""
