"""Filters of this site's flows, for readers at other sites that take the events behind them.

Filters have a name, the digest of their text. A reader names those that it wants, so that a range
which it reads again gives the same events, also after a change. A gateway finds them in the kept
revisions of the flow.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import yaml

from flumeng.agent.gateway.filter_processes import FilterProcesses
from flumeng.config import FlowSpec, SpecError, document, parse_flow
from flumeng.config.column_kinds import EVENT, Columns
from flumeng.config.component import Component, FilterOptions, mentions
from flumeng.config.policy import Policy
from flumeng.control.commands.lookup import kept_revisions, require_flow, require_revision
from flumeng.control.zookeeper import Store
from flumeng.events.journal_names import flow_of
from flumeng.journal.serving import filtered_wire
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.gateway_wire import FiltersAnswer
from flumeng.journal.serving.wire import Ticket
from flumeng.platform.errors import UserError
from zkschema import paths

CURRENT_SECONDS = 1.0
"""How long a flow's revision counts as the current one."""
REMEMBERED = 256
BY_BLOCK = frozenset({"limit", "dedupe", "python", "sql"})
"""Filters whose result may depend on other events of a batch, beside those that say so."""


@dataclass(frozen=True)
class Kept:
    """Filters of a kept revision. ``text``: of the flow."""

    name: str
    text: str

    @property
    def spec(self) -> FlowSpec:
        return parse_flow(self.text)


class FlowFilters:
    """Finds and runs the filters of flows. Thread-safe. Calls raise UserError for filters that
    cannot run here, with the filter's place, and UnavailableError."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        processes: FilterProcesses,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._policy = policy
        self._processes = processes
        self._clock = clock
        self._lock = threading.Lock()
        self._current: dict[str, tuple[float, Kept]] = {}
        self._named: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self._fit: OrderedDict[str, bytes] = OrderedDict()

    def current(self, flow: str) -> str:
        """Return the name of the flow's filters, which may be unable to run here."""
        return self._newest(flow).name

    def answer(self, site: str, flow: str, name: str) -> FiltersAnswer:
        """Return the columns behind the named filters, or behind the current ones."""
        kept = self._find(flow, name) if name else self._newest(flow)
        return FiltersAnswer(site, kept.name, dict(columns(kept.spec)), self._schema(kept))

    def chunks(self, client: JournalClient, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        """Yield the range of a ticket behind its filters, see ``filtered_wire``."""
        kept = self._find(flow_of(ticket.journal), ticket.filters)
        self._schema(kept)
        end = ticket.start
        for events in client.read(ticket.journal, ticket.start, ticket.end):
            end = events.column("seq")[-1].as_py() + 1
            yield filtered_wire.chunk(self._processes.run(kept.text, events), end)
        if end < ticket.end:  # the last events are marked as lost
            yield filtered_wire.chunk(b"", ticket.end)

    def _newest(self, flow: str) -> Kept:
        with self._lock:
            read_at, kept = self._current.get(flow, (float("-inf"), None))
        now = self._clock()
        if kept is None or now - read_at >= CURRENT_SECONDS:
            number = require_flow(self._store, flow).value.revision
            kept = self._remember(flow, require_revision(self._store, flow, number).effective)
            with self._lock:
                self._current[flow] = now, kept
        return kept

    def _find(self, flow: str, name: str) -> Kept:
        newest = self._newest(flow)
        if newest.name == name:
            return newest
        with self._lock:
            kept = self._named.get((flow, name))
        if kept is not None:
            return kept
        for number in reversed(kept_revisions(self._store, flow)):
            record = self._store.read(paths.revision(flow, str(number)))
            if record is not None and name_of(record.value.effective) == name:
                return self._remember(flow, record.value.effective)
        raise UserError(
            f"no kept revision of flow {flow} has the filters {name}, with which this range was "
            "read before"
        )

    def _remember(self, flow: str, text: str) -> Kept:
        kept = Kept(name_of(text), text)
        with self._lock:
            self._named[flow, kept.name] = kept
            while len(self._named) > REMEMBERED:
                self._named.popitem(last=False)
        return kept

    def _schema(self, kept: Kept) -> bytes:
        """Return the columns behind filters; also checks whether they can run here."""
        with self._lock:
            schema = self._fit.get(kept.name)
        if schema is not None:
            return schema
        try:
            require_fit(kept.spec, self._policy)
            schema = self._processes.schema(kept.text)
        except UserError as error:
            raise UserError(
                f"the filters of flow {kept.spec.flow} cannot run at a gateway: {error}; read "
                "`after: sources`, and filter there"
            ) from error
        with self._lock:
            self._fit[kept.name] = schema
            while len(self._fit) > REMEMBERED:
                self._fit.popitem(last=False)
        return schema


def name_of(text: str) -> str:
    """Return the name of the filters in a flow's text, which ignores its layout."""
    top = document.items(document.compose(text))
    parts = [_plain(top[key]) if key in top else None for key in ("multiline", "filters")]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def require_fit(spec: FlowSpec, policy: Policy) -> None:
    """Raise UserError unless each event's result depends on that event and the filters alone."""
    if spec.multiline is not None:
        raise UserError("multiline joins events, which may be in different ranges")
    for number, part in enumerate(spec.filters):
        place = f"filters[{number}].{part.name}"
        policy.require(part)
        if why := _unfit(part):
            raise UserError(f"{place} {why}")


def columns(spec: FlowSpec) -> Columns:
    """Return the columns behind the flow's filters. Raises UserError."""
    made: Columns = EVENT
    try:
        for part in spec.filters:
            made = part.options.columns_behind(made, conditional=part.when is not None)
    except (ValueError, SpecError) as error:
        raise UserError(str(error)) from error
    return made


def _unfit(part: Component[FilterOptions]) -> str:
    options = part.options
    if options.multiplies:
        return "makes several rows of an event, which a reader could not tell apart"
    if options.regroups or part.name in BY_BLOCK:
        return "may treat an event by the others in its batch, and ranges are cut differently"
    if options.looks_up:
        return "looks values up in a table, which may change before a range is read again"
    if mentions(f"{options!r} {part.when}", frozenset({"replayed"})):
        return "reads the column replayed, which only the reader knows"
    return ""


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {key: _plain(value) for key, value in document.items(node).items()}
    if isinstance(node, yaml.SequenceNode):
        return [*map(_plain, node.value)]
    return [node.tag, node.value]  # null and "null" differ
