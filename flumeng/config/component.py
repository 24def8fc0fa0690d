"""Components of flows, and what they declare about themselves for the rooms that name none.

Each source, filter and sink has one frozen dataclass of ``option`` fields that extends one of the
classes here and overrides what differs from the defaults. These classes import nothing that only a
worker needs, so that control processes can check flows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_origin

from flumeng.config.kinds import EVENT, Columns, either
from flumeng.platform.options.locations import InStore
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.problems import nearest

_WORD = re.compile(r"\w+")

Kind = Literal["source", "filter", "sink", "journal"]
OnError = Literal["keep", "drop", "dead-letter"]
KEEP: OnError = "keep"
DROP: OnError = "drop"
DEAD_LETTER: OnError = "dead-letter"
ExactlyOnce = Literal["staged", "by event", "by batch"]
"""*staged*: written aside and shown by renames. *by event*: the same event twice leaves one. *by
batch*: the target remembers the number of the last batch that it took."""
Placing = Literal["pinned", "partitioned"]
"""*pinned*: the source runs in ingest workers, on every node of its flow's place. *partitioned*: a
discovery task finds its partitions and collect tasks read them, without a journal."""
Guarantee = Literal["acknowledging", "replayable"]
"""``acknowledging``: a source that answers its senders once their events are journaled.
``replayable``: a source that can read again what was lost before it was journaled. What a sink can
depends on its options: see ``SinkOptions.exactly_once``."""


@dataclass(frozen=True)
class Upstream:
    """The flow that a source reads, and whether its filters run before those of the reader."""

    flow: str
    filters: bool


@dataclass(frozen=True)
class OffsetBounds:
    """Names of the options that bound what a source reads by partition and offset. ``replaced``
    ones go when they are set."""

    start: str
    end: str
    replaced: tuple[str, ...]


@dataclass(frozen=True)
class TimeBounds:
    """Names of the options that bound what a source reads by the time at which it was written, and
    of the one that says where. ``replaced`` ones go when they are set."""

    paths: str
    start: str
    end: str
    replaced: tuple[str, ...]


class Declared:
    """The base of all option classes.

    ``implementation``: the class that runs the component, as ``"module:Class"``, imported when it
    is used. ``bare``: the option that is meant where a flow gives a plain value in place of
    options.
    """

    implementation: ClassVar[str]
    bare: ClassVar[str | None] = None

    @property
    def local_path(self) -> str:
        """Where it has files on the disk of the host that runs it; empty when it has none."""
        return ""

    @property
    def local(self) -> bool:
        """Whether each host has files of its own for it."""
        return bool(self.local_path)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield the option's name, or an empty one, and what is wrong in these options together."""
        return iter(())

    def needs(self) -> Iterator[Need]:
        """Yield each ``Need``."""
        return iter(())

    def claims(self) -> Iterator[tuple[str, str]]:
        """Yield the option's name and what it names that only one component of a flow may have."""
        return iter(())


class SourceOptions(Declared):
    """Of a source.

    ``implementation`` is a ``Source`` while it is pinned, and a ``Finder`` of partitions otherwise,
    unless ``finder`` names that. ``poll`` is what a source asks that asks at due times. ``alone``:
    what to do in place of a second source of its kind in one flow; empty where a flow may have
    several.
    """

    finder: ClassVar[str] = ""
    poll: ClassVar[str] = ""
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset()
    alone: ClassVar[str] = ""

    def arrival(self) -> str:
        """What may happen to an event before it is accepted, as the end of a sentence."""
        raise NotImplementedError

    @property
    def placing(self) -> Placing:
        return "pinned"

    @property
    def discovery_seconds(self) -> float:
        """How often its partitions are listed, when it is partitioned."""
        return 10.0

    @property
    def queued(self) -> bool:
        """Whether it has a work queue, of which a flow has one."""
        return False

    @property
    def replay_list(self) -> str:
        """The list of dead letters that it reads; empty when it reads none."""
        return ""

    @property
    def read_columns(self) -> Columns:
        """Those of its events as they are read."""
        return EVENT

    @property
    def upstream(self) -> Upstream | None:
        """The flow that it reads."""
        return None

    @property
    def bounds(self) -> OffsetBounds | TimeBounds | None:
        """How a backfill reads a part of it; None: it cannot."""
        return None

    @property
    def keeps_place(self) -> bool:
        """Whether it journals beside its events where it is, from which it goes on."""
        return False

    @property
    def delivered_within_seconds(self) -> float | None:
        """How long its senders wait until their events are in the sinks; None: they do not."""
        return None

    @property
    def weighed(self) -> bool:
        """Whether the offsets of its partitions do not count events."""
        return False


class InputOptions(SourceOptions):
    """Of a source whose partitions are read in ranges, without a journal."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    def arrival(self) -> str:
        return "each event is read once, by offsets that flumeng keeps"

    @property
    def placing(self) -> Placing:
        return "partitioned"


def mentions(text: str, names: frozenset[str]) -> bool:
    """Whether the text has one of the names as a word."""
    return not names.isdisjoint(_WORD.findall(text))


def missing(option: str, names: Iterable[str], columns: Columns) -> Iterator[str]:
    """Yield for each of the ``names`` in this option of a sink that no column has it."""
    for name in names:
        if name not in columns:
            yield f"{option}: no column {name}; {nearest(name, list(columns))}"


@dataclass(frozen=True, kw_only=True)
class OutsideJournal(Declared):
    """Of a journal that lies in another system, and not on the disks of nodes."""

    @property
    def place(self) -> str:
        """Where it lies, in a few words."""
        raise NotImplementedError

    @property
    def source(self) -> SourceOptions:
        """The options of the source that reads it."""
        raise NotImplementedError


class EntriesError(ValueError):
    """Entries of a filter's list that are wrong, by their number."""

    def __init__(self, errors: Mapping[int, ValueError]) -> None:
        super().__init__("; ".join(map(str, errors.values())))
        self.errors = errors


class FilterOptions(Declared):
    """Of a filter. ``reads_any``: it may read columns that its options do not name.

    ``unconditional``: why it takes no ``when``. ``multiplies``: several rows of an event leave it.
    ``regroups``: its rows depend on where batches are cut. ``keeps_columns``: events have the same
    columns behind it as before it. ``notes_errors``: it says in ``attrs.parse_error`` why it could
    not process an event, which makes it take ``on_error``; it has to keep columns that it does not
    know.
    """

    unconditional: ClassVar[str | None] = None
    multiplies: ClassVar[bool] = False
    regroups: ClassVar[bool] = False
    keeps_columns: ClassVar[bool] = False
    notes_errors: ClassVar[bool] = False
    reads_any: ClassVar[bool] = False

    def behind(self, columns: Columns) -> Columns:
        """The columns of events behind it that have ``columns`` before it. Raises ValueError, and
        ``EntriesError`` when entries of a list do not fit."""
        raise NotImplementedError

    def makes(self) -> Columns:
        """Columns that it adds, which under a condition an earlier filter may have added too.
        Raises ValueError."""
        return {}

    def made_again(self) -> frozenset[str]:
        """Columns that an earlier filter may have made too, under a condition. Raises
        ValueError."""
        return frozenset(self.makes().keys() - EVENT.keys())

    def columns_behind(self, columns: Columns, *, conditional: bool = False) -> Columns:
        """As ``behind``, with the columns of those events too that pass it by when it is
        ``conditional``."""
        if not conditional:
            return self.behind(columns)
        again = self.made_again()
        given = {name: kind for name, kind in columns.items() if name not in again}
        return either(columns, self.behind(given))

    @property
    def reshapes(self) -> bool:
        """Whether there are more rows, or fewer, than events behind it, and none is dropped."""
        return self.multiplies or self.regroups

    def looked_up(self, before: Columns, after: Columns, _known: frozenset[str], /) -> set[str]:
        """The columns behind it that come from a table, where the third argument has those that do
        before it, besides those of these that it leaves as they are. Where that is not clear, a
        column counts as one."""
        return set(after.keys() - before.keys())

    @property
    def looks_up(self) -> bool:
        """Whether it looks things up in tables."""
        return False

    @property
    def unsteady(self) -> str | None:
        """What in it may choose other events when a batch is repeated; None: nothing."""
        return None

    @property
    def reads_container(self) -> bool:
        """Whether it reads what a container runtime writes around a message."""
        return False

    @property
    def leaves_unread(self) -> bool:
        """Whether it may end a batch before all of its events are read."""
        return False


class SinkOptions(Declared):
    """Of a sink.

    ``numbered``: it is given the number of each batch however its flow delivers.
    ``cut_by_content``: what it sends under one number depends on what is in the events.
    ``in_driver``: the driver of the collector writes too, and not the executors alone.
    """

    numbered: ClassVar[bool] = False
    cut_by_content: ClassVar[bool] = False
    in_driver: ClassVar[bool] = False

    @property
    def exactly_once(self) -> ExactlyOnce | None:
        """How it can deliver exactly once; None: it cannot."""
        return None

    def decided(self, delivery: str) -> bool:
        """Whether a flow that delivers so decides about each batch before this sink has it."""
        return self.numbered or (delivery == "exactly-once" and self.exactly_once == "by batch")

    @property
    def makes_files(self) -> bool:
        """Whether each batch makes files, so that batches are to be large."""
        return False

    @property
    def one_row_an_event(self) -> bool:
        """Whether several rows of an event become one."""
        return False

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The columns that decide where the target keeps an event: another value, another place."""
        return ()

    @property
    def members(self) -> tuple[Component[SinkOptions], ...]:
        """The sinks of a group, each of which declares all this for itself."""
        return ()

    @property
    def letter_files(self) -> InStore | None:
        """Where dead letters that it wrote lie as files; None: they are no files."""
        return None

    @property
    def unreadable_form(self) -> str | None:
        """The form of its files when dead letters in them cannot be listed, replayed and purged."""
        return None

    def misfits(self, _columns: Columns, /) -> Iterator[str]:
        """Yield why events with these columns cannot be written."""
        return iter(())


@dataclass(frozen=True)
class Keep:
    """How long dead letters in files are kept, and how many bytes of them; older files go."""

    days: int | None = option(
        doc="Files that are older go.", between=(1, 36_500), example="30", default=None
    )
    bytes: int | None = option(
        doc="Of more the oldest files go.", between=(2**20, 2**60), example="10 GiB", default=None
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.days is None and self.bytes is None:
            yield "", "expected days, bytes or both"


OptionsT_co = TypeVar("OptionsT_co", bound=Declared, covariant=True)


@dataclass(frozen=True)
class Component(Generic[OptionsT_co]):
    """``options`` is an instance of the frozen dataclass registered for ``kind`` and ``name``.
    ``when``: of a filter, in Spark SQL, which events it is for; all others pass it by.
    ``on_error``: what becomes of events that a filter cannot process. ``isolated``: of a sink, that
    it is written at its own pace. ``keep``: of the sink for dead letters, how many of these are
    kept; all, when it is None."""

    kind: Kind
    name: str
    options: OptionsT_co
    when: str | None = None
    on_error: OnError = KEEP
    isolated: bool = False
    keep: Keep | None = None


def is_component(hint: Any) -> bool:
    """Whether a type hint is that of a component, of whatever kind."""
    return get_origin(hint) is Component
