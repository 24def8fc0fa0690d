"""Declarations of components: each source, filter and sink has a frozen dataclass of ``option``
fields that extends a class here. None imports modules that only workers need, so that control
processes can check flows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_origin

from flumeng.config.column_kinds import EVENT, Columns, either
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
"""*staged*: written to a staging place and shown by renames. *by event*: writing an event twice
keeps one. *by batch*: the target stores the number of the last batch."""
Placing = Literal["pinned", "partitioned"]
"""*pinned*: runs in ingest workers, on every node of the place. *partitioned*: a discovery task
finds partitions, and collect tasks read them, without a journal."""
Guarantee = Literal["acknowledging", "replayable"]
"""``acknowledging``: answers senders once events are journaled. ``replayable``: can read events
again that were lost before the journal. For sinks see ``SinkOptions.exactly_once``."""


@dataclass(frozen=True)
class Upstream:
    """The flow that a source reads. ``filters``: whether the events have passed its filters."""

    flow: str
    filters: bool


@dataclass(frozen=True)
class RemoteFlow:
    """The flow of another site that a source reads. ``keep_seconds``: how long that site keeps
    unread events after it last heard of the reader. ``at``: the window in which events are read,
    as ``windows.parse_hours`` takes it. "" or 0: no limit. A higher ``priority`` comes first.
    ``filters``: whether that site sends the events behind the flow's filters."""

    site: str
    flow: str
    keep_seconds: float
    bytes_per_second: int = 0
    at: str = ""
    priority: int = 0
    filters: bool = False


@dataclass(frozen=True)
class OffsetBounds:
    """Names of options that bound a source by partition and offset, and of those they replace."""

    start: str
    end: str
    replaced: tuple[str, ...]


@dataclass(frozen=True)
class TimeBounds:
    """Names of options that bound a source by path and write time, and of those they replace."""

    paths: str
    start: str
    end: str
    replaced: tuple[str, ...]


class Declared:
    """The base of all option classes. ``implementation``: the class that runs the component,
    ``"module:Class"``, imported when used. ``bare``: the option that a plain value in place of
    options sets. ``needs_own_driver``: does not run on Spark Connect, since it uses the
    collector's own driver of Spark."""

    implementation: ClassVar[str]
    bare: ClassVar[str | None] = None
    needs_own_driver: ClassVar[bool] = False

    @property
    def local_path(self) -> str:
        """The path of the component's files on the disk of its host, or ""."""
        return ""

    @property
    def local(self) -> bool:
        """Whether each host has files of its own."""
        return bool(self.local_path)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option or "", message) for options that contradict each other."""
        return iter(())

    def needs(self) -> Iterator[Need]:
        return iter(())

    def claims(self) -> Iterator[tuple[str, str]]:
        """Yield (option, resource) for resources that only one component of a flow may have."""
        return iter(())


class SourceOptions(Declared):
    """Options of a source. ``implementation``: a ``Source`` if pinned, else a ``Finder`` unless
    ``finder`` names one. ``poll``: the class that polls at due times. ``alone``: the alternative to
    a second source of the same kind in a flow; empty if that is allowed."""

    finder: ClassVar[str] = ""
    poll: ClassVar[str] = ""
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset()
    alone: ClassVar[str] = ""

    def arrival(self) -> str:
        """Return the guarantee for events before they are accepted, as the end of a sentence."""
        raise NotImplementedError

    @property
    def placing(self) -> Placing:
        return "pinned"

    @property
    def discovery_seconds(self) -> float:
        """Seconds between two listings of the source's partitions."""
        return 10.0

    @property
    def queued(self) -> bool:
        """Whether the source has a work queue; a flow has at most one."""
        return False

    @property
    def replay_list(self) -> str:
        """The name of the list of dead letters that the source reads, or ""."""
        return ""

    @property
    def read_columns(self) -> Columns:
        """The columns of the source's events as they are read."""
        return EVENT

    @property
    def upstream(self) -> Upstream | None:
        return None

    @property
    def remote(self) -> RemoteFlow | None:
        return None

    @property
    def filtered_by(self) -> str:
        """The flow, here or at another site, whose filters the events have passed, or ""."""
        read = (self.upstream, self.remote)
        return next((flow.flow for flow in read if flow is not None and flow.filters), "")

    @property
    def bounds(self) -> OffsetBounds | TimeBounds | None:
        """The options that bound a backfill; None when the source cannot be backfilled."""
        return None

    @property
    def keeps_place(self) -> bool:
        """Whether the source journals its position with its events."""
        return False

    @property
    def delivered_within_seconds(self) -> float | None:
        """How long senders wait for delivery; None when they do not wait."""
        return None

    @property
    def weighed(self) -> bool:
        """Whether the source's offsets count something else than events."""
        return False


class InputOptions(SourceOptions):
    """Options of a source whose partitions are read in ranges, without a journal."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    def arrival(self) -> str:
        return "each event is read once, by offsets that flumeng keeps"

    @property
    def placing(self) -> Placing:
        return "partitioned"


def mentions(text: str, names: frozenset[str]) -> bool:
    """Return whether the text has one of the names as a word."""
    return not names.isdisjoint(_WORD.findall(text))


def missing(option: str, names: Iterable[str], columns: Columns) -> Iterator[str]:
    """Yield a message for each name in a sink's ``option`` that is not a column."""
    for name in names:
        if name not in columns:
            yield f"{option}: there is no column {name}; {nearest(name, list(columns))}"


@dataclass(frozen=True, kw_only=True)
class OutsideJournal(Declared):
    """Options of a journal in another system."""

    @property
    def location(self) -> str:
        """The journal's location in a few words, for messages."""
        raise NotImplementedError

    @property
    def source(self) -> SourceOptions:
        raise NotImplementedError


def problem_of(name: str, check: Callable[..., object], *given: Any) -> Iterator[tuple[str, str]]:
    """Yield ``name`` and the message of the ValueError that ``check(*given)`` raises, if any."""
    try:
        check(*given)
    except ValueError as error:
        yield name, str(error)


class EntriesError(ValueError):
    """Errors of the entries of a filter's list, by number."""

    def __init__(self, errors: Mapping[int, ValueError]) -> None:
        super().__init__("; ".join(map(str, errors.values())))
        self.errors = errors


EntryT = TypeVar("EntryT")


def for_entries(entries: Iterable[EntryT], take: Callable[[EntryT], None]) -> None:
    """Call ``take`` for each entry. Raises ``EntriesError`` with the ValueErrors of all entries."""
    errors: dict[int, ValueError] = {}
    for number, entry in enumerate(entries):
        try:
            take(entry)
        except ValueError as error:
            errors[number] = error
    if errors:
        raise EntriesError(errors)


class FilterOptions(Declared):
    """Options of a filter. ``reads_any``: may read columns that its options do not name.
    ``unconditional``: why it takes no ``when``. ``multiplies``: makes several rows of an event.
    ``regroups``: its rows depend on batch boundaries. ``keeps_columns``: does not change the
    columns. ``notes_errors``: reports failures in ``attrs.parse_error``, so that it takes
    ``on_error``; it must keep unknown columns."""

    unconditional: ClassVar[str | None] = None
    multiplies: ClassVar[bool] = False
    regroups: ClassVar[bool] = False
    keeps_columns: ClassVar[bool] = False
    notes_errors: ClassVar[bool] = False
    reads_any: ClassVar[bool] = False

    def behind(self, columns: Columns) -> Columns:
        """Return the columns after the filter. Raises ValueError; ``EntriesError`` for a list."""
        raise NotImplementedError

    def makes(self) -> Columns:
        """Return the columns that the filter adds. Raises ValueError."""
        return {}

    def made_again(self) -> frozenset[str]:
        """Return its columns that earlier conditional filters may add too. Raises ValueError."""
        return frozenset(self.makes().keys() - EVENT.keys())

    def columns_behind(self, columns: Columns, *, conditional: bool = False) -> Columns:
        """Return the filter's columns; if ``conditional``, with those of events that bypass it."""
        if not conditional:
            return self.behind(columns)
        again = self.made_again()
        given = {name: kind for name, kind in columns.items() if name not in again}
        return either(columns, self.behind(given))

    @property
    def reshapes(self) -> bool:
        """Whether the filter's output rows are not single events."""
        return self.multiplies or self.regroups

    def looked_up(self, before: Columns, after: Columns, _earlier: frozenset[str], /) -> set[str]:
        """Return the output columns that come, or may come, from a table. ``_earlier``: columns
        that earlier filters took from tables; they may be left out if unchanged."""
        return set(after.keys() - before.keys())

    @property
    def looks_up(self) -> bool:
        return False

    @property
    def unsteady(self) -> str | None:
        """The part of the filter that may select other events in a repeated batch, or None."""
        return None

    @property
    def reads_container(self) -> bool:
        """Whether the filter reads the line format of a container runtime."""
        return False

    @property
    def leaves_unread(self) -> bool:
        """Whether the filter may end a batch before it has read all events."""
        return False


class SinkOptions(Declared):
    """Options of a sink. ``numbered``: gets a number with each batch. ``cut_by_content``: the data
    written under one number depends on the events. ``in_driver``: the Spark driver writes too."""

    numbered: ClassVar[bool] = False
    cut_by_content: ClassVar[bool] = False
    in_driver: ClassVar[bool] = False

    @property
    def exactly_once(self) -> ExactlyOnce | None:
        return None

    def decided(self, delivery: str) -> bool:
        """Return whether each batch is decided before this sink gets it."""
        return self.numbered or (delivery == "exactly-once" and self.exactly_once == "by batch")

    @property
    def makes_files(self) -> bool:
        """Whether each batch makes files, so that batches should be large."""
        return False

    @property
    def one_row_an_event(self) -> bool:
        """Whether several rows of an event become one in the target."""
        return False

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The columns that determine where the target places an event."""
        return ()

    @property
    def members(self) -> tuple[Component[SinkOptions], ...]:
        """The sinks of a group; empty for a single sink."""
        return ()

    @property
    def dead_letter_files(self) -> InStore | None:
        """The place of dead letters that this sink writes as files, else None."""
        return None

    @property
    def unreadable_form(self) -> str | None:
        """The format of the files if dead letters in them cannot be read back, else None."""
        return None

    def misfits(self, _columns: Columns, /) -> Iterator[str]:
        """Yield reasons why events with these columns cannot be written."""
        return iter(())


@dataclass(frozen=True)
class Keep:
    """How long dead letters in files are kept, and how many bytes of them."""

    days: int | None = option(
        doc="The days to keep a file.", between=(1, 36_500), example="30", default=None
    )
    bytes: int | None = option(
        doc="The most bytes to keep.", between=(2**20, 2**60), example="10 GiB", default=None
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.days is None and self.bytes is None:
            yield "", "expected days, bytes or both"


OptionsT_co = TypeVar("OptionsT_co", bound=Declared, covariant=True)


@dataclass(frozen=True)
class Component(Generic[OptionsT_co]):
    """A source, filter, sink or journal of a flow, with options of the class registered for its
    kind and name. Of a filter: ``when``, a condition, and ``on_error``. Of a sink: ``isolated``,
    written at its own pace; ``keep``, the retention of dead letters."""

    kind: Kind
    name: str
    options: OptionsT_co
    when: str | None = None
    on_error: OnError = KEEP
    isolated: bool = False
    keep: Keep | None = None


def is_component(hint: Any) -> bool:
    return get_origin(hint) is Component
