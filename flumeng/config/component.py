"""Components of flows: what their option classes declare.

Each source, filter and sink has a frozen dataclass of ``option`` fields that extends a class here.
These import nothing that only workers need, so that control processes can check flows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
batch*: the target remembers the number of the last batch."""
Placing = Literal["pinned", "partitioned"]
"""*pinned*: runs in ingest workers, on every node of the place. *partitioned*: a discovery task
finds partitions, and collect tasks read them, without a journal."""
Guarantee = Literal["acknowledging", "replayable"]
"""``acknowledging``: answers senders once events are journaled. ``replayable``: can read again what
was lost before it was journaled. For sinks see ``SinkOptions.exactly_once``."""


@dataclass(frozen=True)
class Upstream:
    """The flow that a source reads, and whether after its filters."""

    flow: str
    filters: bool


@dataclass(frozen=True)
class OffsetBounds:
    """Names of options that bound a source by partition and offset; ``replaced`` ones are removed
    then."""

    start: str
    end: str
    replaced: tuple[str, ...]


@dataclass(frozen=True)
class TimeBounds:
    """Names of options that bound a source by write time, and of its paths; ``replaced`` ones are
    removed then."""

    paths: str
    start: str
    end: str
    replaced: tuple[str, ...]


class Declared:
    """The base of all option classes.

    ``implementation``: the class that runs the component, ``"module:Class"``, imported when used.
    ``bare``: the option that a plain value in place of options sets.
    """

    implementation: ClassVar[str]
    bare: ClassVar[str | None] = None

    @property
    def local_path(self) -> str:
        """Its files on the disk of the host that runs it; else empty."""
        return ""

    @property
    def local(self) -> bool:
        """Whether each host has its own files."""
        return bool(self.local_path)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield an option's name, or an empty one, and what is wrong with the options together."""
        return iter(())

    def needs(self) -> Iterator[Need]:
        return iter(())

    def claims(self) -> Iterator[tuple[str, str]]:
        """Yield an option's name and what only one component of a flow may have."""
        return iter(())


class SourceOptions(Declared):
    """``implementation``: a ``Source`` if pinned, else a ``Finder``, unless ``finder`` names that.
    ``poll``: what a source polls at due times. ``alone``: what to do instead of a second source of
    the kind in a flow; empty if allowed."""

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
        """How often partitions are listed."""
        return 10.0

    @property
    def queued(self) -> bool:
        """Whether it has a work queue, of which a flow has one."""
        return False

    @property
    def replay_list(self) -> str:
        """The list of dead letters that it reads, else empty."""
        return ""

    @property
    def read_columns(self) -> Columns:
        """Of its events as they are read."""
        return EVENT

    @property
    def upstream(self) -> Upstream | None:
        return None

    @property
    def bounds(self) -> OffsetBounds | TimeBounds | None:
        """How a backfill reads a part of it; None: it cannot."""
        return None

    @property
    def keeps_place(self) -> bool:
        """Whether it journals its position beside its events."""
        return False

    @property
    def delivered_within_seconds(self) -> float | None:
        """How long its senders wait until their events are in the sinks; None: they do not."""
        return None

    @property
    def weighed(self) -> bool:
        """Whether offsets of its partitions do not count events."""
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
    """Yield a sentence for each of ``names``, in an option of a sink, that is no column."""
    for name in names:
        if name not in columns:
            yield f"{option}: no column {name}; {nearest(name, list(columns))}"


@dataclass(frozen=True, kw_only=True)
class OutsideJournal(Declared):
    """Of a journal in another system."""

    @property
    def place(self) -> str:
        """Where it is, in a few words."""
        raise NotImplementedError

    @property
    def source(self) -> SourceOptions:
        """The options of the source that reads it."""
        raise NotImplementedError


def problem_of(name: str, check: Callable[..., object], *given: Any) -> Iterator[tuple[str, str]]:
    """Yield the option ``name`` with the ValueError that ``check(*given)`` raises, if any."""
    try:
        check(*given)
    except ValueError as error:
        yield name, str(error)


class EntriesError(ValueError):
    """Wrong entries of a filter's list, by number."""

    def __init__(self, errors: Mapping[int, ValueError]) -> None:
        super().__init__("; ".join(map(str, errors.values())))
        self.errors = errors


EntryT = TypeVar("EntryT")


def for_entries(entries: Iterable[EntryT], take: Callable[[EntryT], None]) -> None:
    """Call ``take`` for each entry. Raises ``EntriesError`` for all that raise ValueError."""
    errors: dict[int, ValueError] = {}
    for number, entry in enumerate(entries):
        try:
            take(entry)
        except ValueError as error:
            errors[number] = error
    if errors:
        raise EntriesError(errors)


class FilterOptions(Declared):
    """``reads_any``: it may read columns that its options do not name. ``unconditional``: why it
    takes no ``when``. ``multiplies``: several rows of an event leave it. ``regroups``: its rows
    depend on where batches are cut. ``keeps_columns``: the same columns behind it.
    ``notes_errors``: it reports failures in ``attrs.parse_error``, so that it takes ``on_error``;
    it must keep unknown columns."""

    unconditional: ClassVar[str | None] = None
    multiplies: ClassVar[bool] = False
    regroups: ClassVar[bool] = False
    keeps_columns: ClassVar[bool] = False
    notes_errors: ClassVar[bool] = False
    reads_any: ClassVar[bool] = False

    def behind(self, columns: Columns) -> Columns:
        """The columns behind it. Raises ValueError, and ``EntriesError`` for entries of a list."""
        raise NotImplementedError

    def makes(self) -> Columns:
        """Columns that it adds; under a condition an earlier filter may have added them too. Raises
        ValueError."""
        return {}

    def made_again(self) -> frozenset[str]:
        """Columns that an earlier filter may have made under a condition. Raises ValueError."""
        return frozenset(self.makes().keys() - EVENT.keys())

    def columns_behind(self, columns: Columns, *, conditional: bool = False) -> Columns:
        """As ``behind``; if ``conditional``, with the columns of events that pass it by."""
        if not conditional:
            return self.behind(columns)
        again = self.made_again()
        given = {name: kind for name, kind in columns.items() if name not in again}
        return either(columns, self.behind(given))

    @property
    def reshapes(self) -> bool:
        """Whether rows behind it are not events one by one."""
        return self.multiplies or self.regroups

    def looked_up(self, before: Columns, after: Columns, _known: frozenset[str], /) -> set[str]:
        """The columns behind it that come from a table, besides those of the third argument that it
        leaves as they are. Unclear ones count."""
        return set(after.keys() - before.keys())

    @property
    def looks_up(self) -> bool:
        """Whether it uses lookup tables."""
        return False

    @property
    def unsteady(self) -> str | None:
        """What in it may choose other events when a batch is repeated; None: nothing."""
        return None

    @property
    def reads_container(self) -> bool:
        """Whether it reads container runtimes' lines."""
        return False

    @property
    def leaves_unread(self) -> bool:
        """Whether it may end a batch before reading all events."""
        return False


class SinkOptions(Declared):
    """``numbered``: it gets the number of each batch, however its flow delivers.
    ``cut_by_content``: what it sends under one number depends on the events. ``in_driver``: the
    driver writes too."""

    numbered: ClassVar[bool] = False
    cut_by_content: ClassVar[bool] = False
    in_driver: ClassVar[bool] = False

    @property
    def exactly_once(self) -> ExactlyOnce | None:
        return None

    def decided(self, delivery: str) -> bool:
        """Whether the loop decides each batch before this sink has it."""
        return self.numbered or (delivery == "exactly-once" and self.exactly_once == "by batch")

    @property
    def makes_files(self) -> bool:
        """Whether each batch makes files, so that batches should be large."""
        return False

    @property
    def one_row_an_event(self) -> bool:
        """Whether several rows of an event become one."""
        return False

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The columns that decide where the target keeps an event."""
        return ()

    @property
    def members(self) -> tuple[Component[SinkOptions], ...]:
        """The sinks of a group."""
        return ()

    @property
    def dead_letter_files(self) -> InStore | None:
        """Where its dead letters lie as files; None: they are no files."""
        return None

    @property
    def unreadable_form(self) -> str | None:
        """The form of its files when dead letters in them cannot be read back."""
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
    """``options``: of the class registered for ``kind`` and ``name``. ``when``: of a filter, the
    condition of its events. ``on_error``: of a filter, for events that it cannot process.
    ``isolated``: of a sink, written at its own pace. ``keep``: of the sink for dead letters, how
    many are kept."""

    kind: Kind
    name: str
    options: OptionsT_co
    when: str | None = None
    on_error: OnError = KEEP
    isolated: bool = False
    keep: Keep | None = None


def is_component(hint: Any) -> bool:
    return get_origin(hint) is Component
