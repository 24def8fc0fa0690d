"""Failover from another site, and back. A failover pauses the flows that read the site, and starts
its standby flows. Acks stay, so after a failback the flows read on where they stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flumeng.control.commands.isolated_parts import parts_there
from flumeng.control.commands.lookup import readable_by_name
from flumeng.control.commands.operator import Operator, room_bytes
from flumeng.control.commands.sites import remote_sources, require_site
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.partitions import ack_path, remote_partition
from flumeng.control.zookeeper import Check, Put, ReadableStore, Store, Versioned, readable
from flumeng.control.zookeeper.transaction import MOST_WRITES, singly
from flumeng.platform.errors import ConflictError, UserError
from zkschema import paths
from zkschema.records import Contact, Failover, Flow, Site

Verb = Literal["failover", "failback"]
THERE_SECONDS = 60.0
"""A site counts as there for so long after a flow should have asked it again."""
ABSENT_FLOW = "absent"


@dataclass(frozen=True)
class Unread:
    """A journal of the site as of its last answer to ``flow``: events [``acked``, ``end``) are not
    here; below ``floor`` the site has none any more."""

    flow: str
    journal: str
    acked: int
    floor: int
    end: int

    @property
    def missing(self) -> int:
        return max(0, self.end - self.acked)


@dataclass(frozen=True)
class FlowChange:
    """A flow's states before and after. ``silent_seconds``: since the last answer of the site to a
    flow that ``reads`` it; None without one. The flow asks every ``asks_seconds``."""

    flow: str
    reads: bool
    before: str
    after: str
    silent_seconds: float | None = None
    asks_seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The effect of a command. ``since``: the time of the failover, None without one. ``is_back``:
    the site has answered since then. ``unlisted``: journals with unread events that ``unread``
    lacks."""

    verb: Verb
    site: str
    since: float | None
    is_back: bool
    flows: tuple[FlowChange, ...]
    unread: tuple[Unread, ...]
    unlisted: int

    @property
    def missing(self) -> int:
        return sum(row.missing for row in self.unread)

    @property
    def changed(self) -> tuple[FlowChange, ...]:
        return tuple(flow for flow in self.flows if flow.before != flow.after)

    @property
    def is_done(self) -> bool:
        return self.verb == "failover" and self.since is not None and not self.changed

    @property
    def silent_seconds(self) -> float | None:
        """The seconds since the site's last answer to any flow; None when it never answered."""
        ages = (flow.silent_seconds for flow in self.flows)
        return min((age for age in ages if age is not None), default=None)

    @property
    def is_there(self) -> bool:
        """Whether the site has answered a flow since the failover, and lately."""
        return self.is_back and any(
            flow.silent_seconds is not None
            and flow.silent_seconds <= flow.asks_seconds + THERE_SECONDS
            for flow in self.flows
        )


def plan(store: ReadableStore, site: str, verb: Verb, now: float) -> Plan:
    """Return the effect of the command. ``now``: seconds since the epoch. Raises UserError for an
    unknown site, and for a failback without a failover."""
    found = require_site(store, site)
    record = found.value
    if verb == "failback" and record.failover is None:
        raise UserError(f"there was no failover from site {site}: nothing leads back")
    sources = {flow: it for flow, it in remote_sources(store).items() if it.remote.site == site}
    reading = sorted(sources)
    states = _states(store, [*reading, *record.standby])
    answers = _answers(store, reading)
    flows = [
        FlowChange(
            flow,
            flow in reading,
            before,
            _after(verb, flow, before, record, reads=flow in reading),
            max(0.0, now - answers[flow].written) if flow in answers else None,
            sources[flow].asks_seconds if flow in sources else 0.0,
        )
        for flow, before in states.items()
    ]
    return Plan(
        verb,
        site,
        record.failover.since if record.failover else None,
        any(answer.written > found.written for answer in answers.values()),
        tuple(flows),
        tuple(
            row for flow, answer in answers.items() for row in _unread(store, site, flow, answer)
        ),
        sum(answer.value.more for answer in answers.values()),
    )


def carry_out(operator: Operator, decided: Plan) -> None:
    """Change the flows, in one transaction if it fits; an interrupted command can be repeated.
    Raises ConflictError when a flow has changed since ``plan``, and for a failback from a site that
    does not answer."""
    store, site, verb = operator.store, decided.site, decided.verb
    if verb == "failback":
        _require_there(decided)
    found = require_site(store, site)
    path, after = (
        paths.site(site),
        replace(found.value, failover=_failover(operator, found, decided)),
    )
    command = f"site {verb} {site}"
    changes = _changes(store, decided.changed)
    mine = Put(path, after, found.version)
    room = room_bytes(store.scale)
    if len(changes) < MOST_WRITES and store.scale.fits([mine, *changes], room):
        operator.commit([mine, *changes], command)
        return
    guard = Check(path, found.version)
    if verb == "failover":  # first, so that a failback knows each flow that changes
        operator.commit([mine], command)
        guard = Check(path, require_site(store, site).version)
    for part in singly(store.scale, changes, each=[guard], room_bytes=room):
        operator.commit([guard, *part], command)
    if verb == "failback":
        operator.commit([mine], command)


def _after(verb: Verb, flow: str, before: str, site: Site, *, reads: bool) -> str:
    changed = site.failover or Failover(since=0.0, who="")
    if before == ABSENT_FLOW:
        return before
    if verb == "failover":
        if reads:
            return "suspended" if before == "running" else before
        return "running"
    if reads:
        return "running" if before == "suspended" and flow in changed.paused else before
    return "stopped" if before == "running" and flow in changed.started else before


def _failover(operator: Operator, found: Versioned[Site], decided: Plan) -> Failover | None:
    if decided.verb == "failback":
        return None
    before = found.value.failover or Failover(since=operator.now, who=operator.author)
    paused = (flow.flow for flow in decided.changed if flow.reads)
    started = (flow.flow for flow in decided.changed if not flow.reads)
    return replace(
        before,
        paused=tuple(sorted({*before.paused, *paused})),
        started=tuple(sorted({*before.started, *started})),
    )


def _changes(store: Store, flows: Sequence[FlowChange]) -> list[Put]:
    """Return the writes of these flows and their isolated parts."""
    names = [flow.flow for flow in flows]
    there: Mapping[str, Versioned[Flow]] = readable_by_name(store, paths.flow, names)
    writes: dict[str, Put] = {}
    for change in flows:
        record = there.get(change.flow)
        if record is None or record.value.state != change.before:
            raise ConflictError(f"flow {change.flow} was changed meanwhile: repeat the command")
        for name, each in {**parts_there(store, [change.flow]), change.flow: record}.items():
            if each.value.state != change.after:
                after = replace(each.value, state=change.after)
                writes[name] = Put(paths.flow(name), after, each.version)
    return list(writes.values())


def _require_there(decided: Plan) -> None:
    asks = [flow.asks_seconds for flow in decided.flows if flow.reads]
    if asks and not decided.is_there:
        raise ConflictError(
            f"site {decided.site} has not answered since the failover, or not for "
            f"{min(asks) + THERE_SECONDS:g} s: start its gateways first; `flumeng status` has the "
            f"cause. Flows ask it every {min(asks):g} s (`discovery_seconds`)"
        )


def _states(store: ReadableStore, flows: Sequence[str]) -> dict[str, str]:
    found = readable_by_name(store, paths.flow, flows)
    states = {flow: found[flow].value.state if flow in found else ABSENT_FLOW for flow in flows}
    return {flow: ABSENT_FLOW if state == "deleted" else state for flow, state in states.items()}


def _answers(store: ReadableStore, flows: Sequence[str]) -> dict[str, Versioned[Contact]]:
    found = store.read_each([paths.contact(flow) for flow in flows])
    return {
        flow: answer
        for flow, answer in zip(flows, found, strict=True)
        if isinstance(answer, Versioned)
    }


def _unread(
    store: ReadableStore, site: str, flow: str, answer: Versioned[Contact]
) -> Iterator[Unread]:
    bounds = answer.value.unread
    known = readable(discovered.read(store, [flow])[0])
    starts = {name: part.start for name, part in known.value.partitions.items()} if known else {}
    names = {journal: remote_partition(site, journal) for journal in sorted(bounds)}
    acks = store.read_each([ack_path(flow, name) for name in names.values()])
    for (journal, name), ack in zip(names.items(), acks, strict=True):
        floor, end = bounds[journal]
        acked = ack.value.offset if isinstance(ack, Versioned) else starts.get(name, floor)
        if acked != end:
            yield Unread(flow, journal, acked, floor, end)
