"""Changes of flows. A flow's text only ever changes by a new revision, also when it goes back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from flumeng.errors import ConflictError, FlumengError, UserError
from flumeng.operations import audit
from flumeng.operations.local_files import on_several_hosts
from flumeng.operations.settings import without_chokes
from flumeng.operations.subscriptions import subscribe, why_not_deleted
from flumeng.operations.tombstones import tombstone_writes
from flumeng.spec import check_flow
from flumeng.spec.problems import nearest
from flumeng.state import journal_registry
from flumeng.store import (
    ABSENT,
    ANY,
    WIRE_LIMIT_BYTES,
    Check,
    Put,
    ReadableStore,
    Remove,
    Store,
    Unreadable,
    Versioned,
    Write,
    tree,
)
from zkschema import bootstrap, paths, records

KEEP_REVISIONS = 50
TRANSACTION_BYTES = WIRE_LIMIT_BYTES
WRITE_BYTES = 150
"""What a write takes in a transaction besides the text: its path, and a small record."""
FLOWS_AT_ONCE = 50
"""So many flows share a transaction that pauses, resumes or stops them."""
VERBS = {"running": "resume", "suspended": "pause", "stopped": "stop"}


@dataclass(frozen=True)
class Applied:
    """What became of an apply: the flow's revision now, and whether this call made it."""

    flow: str
    revision: int
    changed: bool


class RefusedError(ConflictError):
    """Some flows may not be applied now, so none was: flow -> why not."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        self.refused = dict(refused)
        super().__init__("\n".join(refused.values()))


@dataclass(frozen=True)
class NextRevision:
    """What an apply makes of a flow: ``number`` is the revision that it has then, the current one
    when ``text`` is its text already. ``kept``: the revisions that are there now. ``decided``: of
    those that are to go, the ones of which a batch is to be repeated. ``cursors`` makes the one at
    the flow that it reads, when there is none yet."""

    flow: str
    text: str
    current: Versioned[records.Flow] | None
    number: int
    kept: tuple[int, ...] = ()
    run_by_all: int = 0
    decided: frozenset[int] = frozenset()
    cursors: tuple[Write, ...] = ()

    @property
    def outdated(self) -> list[int]:
        """The revisions that it lets go."""
        needed = {self.run_by_all, *self.decided}
        oldest = self.number - KEEP_REVISIONS
        return [number for number in self.kept if number <= oldest and number not in needed]

    @property
    def changed(self) -> bool:
        return self.current is None or self.number != self.current.value.revision

    @property
    def applied(self) -> Applied:
        return Applied(self.flow, self.number, self.changed)


def apply_flow(
    store: Store,
    text: str,
    *,
    author: str,
    reason: str,
    now: float,
    expect_revision: int | None = None,
) -> Applied:
    """``apply_flows`` for one. Raises ``SpecError`` too."""
    name = check_flow(text).flow
    parts = apply_flows(
        store, {name: text}, author=author, reason=reason, now=now, expect_revision=expect_revision
    )
    (applied,) = chain.from_iterable(parts)
    return applied


def apply_flows(
    store: Store,
    texts: Mapping[str, str],
    *,
    author: str,
    reason: str,
    now: float,
    expect_revision: int | None = None,
) -> Iterator[list[Applied]]:
    """Make each text, which is valid, the current revision of its flow; a new flow starts to run.

    Unchanged texts change nothing. ``expect_revision`` is the revision that must be current (0: the
    flow must not exist). The newest ``KEEP_REVISIONS`` are kept, the one that a rollout goes back
    to, and those of which a batch is to be repeated. A name is free again once no journal is left
    of the flow that had it: the new flow would deliver what they hold, under epochs that begin
    anew.

    All are written in one transaction while that fits; then in the order of ``texts`` in as few as
    possible, and what each has applied is given when it is done. Raises ``RefusedError`` before
    anything is written, ``ConflictError`` and ``UnavailableError`` for the transaction that failed.
    """
    schema = tree.require_versioned(store)
    wanted = next_revisions(store, texts, expect_revision)
    refuse_several_hosts(store, wanted)
    refuse_undecided(schema.value, wanted)
    yield [one.applied for one in wanted if not one.changed]
    for part in _in_transactions(
        (one, revision_writes(one, schema, author, reason, now)) for one in wanted if one.changed
    ):
        said = ", ".join(f"{one.flow} (revision {one.number})" for one, _ in part)
        entry = records.Audit(who=author, command=f"flow apply {said}", reason=reason, time=now)
        unchanged = Check(paths.schema(), schema.version)  # it tells which folders a flow has
        audit.commit(store, [unchanged, *(write for _, writes in part for write in writes)], entry)
        yield [one.applied for one, _ in part]


def rollback_flow(
    store: Store,
    flow: str,
    number: int,
    *,
    author: str,
    reason: str,
    now: float,
    expect_revision: int | None = None,
) -> Applied:
    """Make a new revision with the text of revision ``number``; its reason says so.

    Raises as ``apply_flow``, and ``UserError`` when the flow or that revision is not there.
    """
    require_flow(store, flow)
    text = require_revision(store, flow, number).text
    check_flow(text)
    why = f"rollback to revision {number}"
    schema = tree.require_versioned(store)
    (wanted,) = next_revisions(store, {flow: text}, expect_revision)
    if wanted.current is None:
        raise ConflictError(f"flow {flow} was deleted meanwhile")
    refuse_several_hosts(store, [wanted])
    refuse_undecided(schema.value, [wanted])
    if wanted.changed:
        because = f"{why}: {reason}" if reason else why
        command = f"flow rollback {flow} {number} (revision {wanted.number})"
        entry = records.Audit(who=author, command=command, reason=because, time=now)
        audit.commit(store, revision_writes(wanted, schema, author, because, now), entry)
    return wanted.applied


def set_flow_state(
    store: Store,
    flow: str,
    state: str,
    *,
    author: str,
    reason: str,
    now: float,
    expect_revision: int | None = None,
) -> bool:
    """Want the flow ``running``, ``suspended`` or ``stopped``; gives whether that is a change.

    Suspended: its collect tasks are let go, its sources go on into the journals. Stopped: its
    sources stop, what they accepted is collected to its end. Raises ``UserError`` for a flow that
    does not exist, ``ConflictError``, ``UnavailableError``.
    """
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    refuse_deleted(flow, current.value, f"it cannot become {state} any more")
    if current.value.state == state:
        return False
    entry = records.Audit(
        who=author, command=f"flow {VERBS[state]} {flow}", reason=reason, time=now
    )
    wanted = replace(current.value, state=state)
    audit.commit(store, [Put(paths.flow(flow), wanted, current.version)], entry)
    return True


@dataclass(frozen=True)
class StateOutcome:
    """What became of one of many flows: whether it changed, or why not."""

    flow: str
    changed: bool
    error: FlumengError | None = None


def set_flow_states(
    store: Store, flows: Sequence[str], state: str, *, author: str, reason: str, now: float
) -> Iterator[StateOutcome]:
    """As ``set_flow_state`` for each, one in turn after the other; what is wrong with one ends
    nothing. Those that nothing stands in the way of share transactions and their audit entry.
    """
    for start in range(0, len(flows), FLOWS_AT_ONCE):
        part = flows[start : start + FLOWS_AT_ONCE]
        try:
            entry = records.Audit(
                who=author, command=f"flow {VERBS[state]}", reason=reason, time=now
            )
            yield from _set_together(store, part, state, entry)
        except FlumengError:
            for flow in part:
                try:
                    changed = set_flow_state(
                        store, flow, state, author=author, reason=reason, now=now
                    )
                except FlumengError as error:
                    yield StateOutcome(flow, changed=False, error=error)
                else:
                    yield StateOutcome(flow, changed)


def _set_together(
    store: Store, flows: Sequence[str], state: str, entry: records.Audit
) -> list[StateOutcome]:
    """All or none. Raises as ``set_flow_state``."""
    currents = store.read_each([paths.flow(flow) for flow in flows])
    writes: list[Write] = []
    outcomes = []
    for flow, current in zip(flows, currents, strict=True):
        if not isinstance(current, Versioned) or current.value.state == "deleted":
            raise ConflictError(f"flow {flow} has to be looked at by itself")
        changed = current.value.state != state
        outcomes.append(StateOutcome(flow, changed))
        if changed:
            wanted = replace(current.value, state=state)
            writes.append(Put(paths.flow(flow), wanted, current.version))
    if writes:
        named = " ".join(one.flow for one in outcomes if one.changed)
        audit.commit(store, writes, replace(entry, command=f"{entry.command} {named}"))
    return outcomes


def delete_flow(
    store: Store,
    flow: str,
    *,
    author: str,
    reason: str,
    now: float,
    discard: bool = False,
    expect_revision: int | None = None,
) -> bool:
    """Want the flow gone; masters drain it first, or with ``discard`` drop what is not collected.

    Its chokes go at once: its sources stop, and the next flow of that name is another one. Its
    history stays readable (``/tombstones``).
    Gives whether this call changed anything. Raises ``UserError`` for a flow that does not exist,
    ``ConflictError``, ``UnavailableError``.
    """
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    if why := why_not_deleted(store, flow):
        raise ConflictError(why)
    wanted = replace(current.value, state="deleted", discard=discard or current.value.discard)
    if wanted == current.value:
        return False
    command = f"flow delete {flow}{' --discard' if discard else ''}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    writes = [
        Put(paths.flow(flow), wanted, current.version),
        *without_chokes(store, flow=flow),
        *tombstone_writes(store, flow, author=author, reason=reason, now=now),
    ]
    audit.commit(store, writes, entry)
    return True


def require_flow(store: ReadableStore, flow: str) -> Versioned[records.Flow]:
    """The flow's record. Raises ``UserError`` with the nearest name when there is none."""
    tree.require(store)
    known = store.children(paths.flows())
    found = store.read(paths.flow(flow)) if flow in known else None
    if found is None:
        hint = nearest(flow, known) if known else "there are no flows yet"
        raise UserError(f'there is no flow "{flow}"; {hint}')
    return found


def require_revision(store: ReadableStore, flow: str, number: int) -> records.Revision:
    """One kept revision. Raises ``UserError`` that names those that are there."""
    found = store.read(paths.revision(flow, str(number)))
    if found is None:
        kept = _kept(store, flow)
        those = f"those from {kept[0]} to {kept[-1]} are" if kept else "none is"
        hint = "" if kept else ": see `flumeng schema verify`"
        raise UserError(f"flow {flow} has no revision {number}: {those} kept{hint}")
    return found.value


def expect_current(
    flow: str, current: Versioned[records.Flow] | None, expected: int | None
) -> None:
    """Raises ``ConflictError`` when the flow is not at this revision; 0 is one that is absent."""
    actual = current.value.revision if current else 0
    if expected is not None and expected != actual:
        state = f"is at revision {actual}" if current else "does not exist"
        raise ConflictError(f"flow {flow} {state}, not at revision {expected}: look at it again")


def refuse_deleted(flow: str, record: records.Flow, advice: str) -> None:
    """Raises ``ConflictError`` for a flow that is to go."""
    if record.state == "deleted":
        raise ConflictError(f"flow {flow} is being deleted: {advice}")


def next_revisions(
    store: ReadableStore, texts: Mapping[str, str], expect_revision: int | None = None
) -> list[NextRevision]:
    """What an apply of these texts makes of each flow. Raises ``RefusedError`` for all together
    that may not be applied now."""
    currents = dict(zip(texts, store.read_each([paths.flow(name) for name in texts]), strict=True))
    holders = _holders_of_journals(store) if None in currents.values() else {}
    refused: dict[str, str] = {}
    there: dict[str, Versioned[records.Flow]] = {}
    for flow, current in currents.items():
        try:
            if isinstance(current, Unreadable):
                raise ConflictError(f"flow {flow} cannot be read: `flumeng schema verify --fix`")
            expect_current(flow, current, expect_revision)
            if current is None:
                _refuse_leftovers(flow, holders.get(flow, set()))
            else:
                refuse_deleted(flow, current.value, "apply it again when it is gone")
                there[flow] = current
        except ConflictError as error:
            refused[flow] = str(error)
    if refused:
        raise RefusedError(refused)
    before = _current_texts(store, there)
    cursors, refused = subscribe(store, texts, before)
    if refused:
        raise RefusedError(refused)
    changed = [flow for flow, current in there.items() if before[flow] != texts[flow]]
    plans = store.read_each([paths.plan(flow) for flow in changed])
    run_by_all = {
        flow: plan.value.revision
        for flow, plan in zip(changed, plans, strict=True)
        if isinstance(plan, Versioned)
    }
    following = {
        flow: NextRevision(flow, text, None, 1)
        if flow not in there
        else _following(store, flow, text, there[flow], run_by_all.get(flow, 0))
        if flow in changed
        else NextRevision(flow, text, there[flow], there[flow].value.revision)
        for flow, text in texts.items()
    }
    return [
        replace(one, cursors=tuple(cursors.get(flow, ())))
        for flow, one in sorted(following.items(), key=lambda item: item[0] in cursors)
    ]


def refuse_several_hosts(store: ReadableStore, wanted: Iterable[NextRevision]) -> None:
    """Raises ``RefusedError`` for those that this changes; see ``local_files``."""
    refused = on_several_hosts(store, {one.flow: one.text for one in wanted if one.changed})
    if refused:
        raise RefusedError(refused)


def refuse_undecided(schema: records.Schema, wanted: Iterable[NextRevision]) -> None:
    """Raises ``RefusedError`` for those that this changes whose tasks would have no place for what
    they decide, in a tree that is as old."""
    since = paths.intent.since
    if schema.version >= since:
        return
    refused = {
        one.flow: f"flow {one.flow} delivers exactly once to a target that knows batches by number:"
        f" that takes a tree of version {since}, and this one has {schema.version} "
        "(`flumeng schema migrate --finish`)"
        for one in wanted
        if one.changed and check_flow(one.text).by_batch
    }
    if refused:
        raise RefusedError(refused)


def _following(
    store: ReadableStore, flow: str, text: str, current: Versioned[records.Flow], run_by_all: int
) -> NextRevision:
    kept = tuple(_kept(store, flow))
    number = max([current.value.revision, *kept]) + 1
    following = NextRevision(flow, text, current, number, kept, run_by_all)
    if not following.outdated:
        return following
    tasks = store.children(paths.intents(flow))
    intents = store.read_each([paths.intent(flow, task) for task in tasks])
    decided = {found.value.revision for found in intents if isinstance(found, Versioned)}
    return replace(following, decided=frozenset(decided))


def _current_texts(
    store: ReadableStore, flows: Mapping[str, Versioned[records.Flow]]
) -> dict[str, str | None]:
    """None where there is no text that can be read: whatever is applied is another one."""
    wanted = [paths.revision(flow, str(it.value.revision)) for flow, it in flows.items()]
    found = store.read_each(wanted)
    return {
        flow: revision.value.text if isinstance(revision, Versioned) else None
        for flow, revision in zip(flows, found, strict=True)
    }


def revision_writes(
    one: NextRevision,
    schema: Versioned[records.Schema],
    author: str,
    reason: str,
    now: float,
    *,
    backfill_of: str = "",
) -> list[Write]:
    """What makes the revision the current one; all of it in one transaction. A new flow may be a
    backfill of another one."""
    revision = records.Revision(text=one.text, author=author, reason=reason, time=now)
    text = Put(paths.revision(one.flow, str(one.number)), revision, ABSENT)
    if one.current is None:
        folders = bootstrap.flow_folders(one.flow, schema.value.version)
        flow = Put(
            paths.flow(one.flow), records.Flow(revision=one.number, backfill_of=backfill_of), ABSENT
        )
        return [flow, *(Put(folder, None, ABSENT) for folder in folders), text, *one.cursors]
    record = replace(one.current.value, revision=one.number, went_back="")
    return [
        Put(paths.flow(one.flow), record, one.current.version),
        text,
        *one.cursors,
        *(Remove(paths.revision(one.flow, str(number)), ANY) for number in one.outdated),
    ]


Planned = tuple[NextRevision, list[Write]]


def _in_transactions(planned: Iterable[Planned]) -> Iterator[list[Planned]]:
    """In order and in as few parts as fit; one flow's writes stay together."""
    part: list[Planned] = []
    room = TRANSACTION_BYTES
    for one, writes in planned:
        size = len(one.text.encode()) + len(writes) * WRITE_BYTES
        if part and size > room:
            yield part
            part, room = [], TRANSACTION_BYTES
        part.append((one, writes))
        room -= size
    if part:
        yield part


def _kept(store: ReadableStore, flow: str) -> list[int]:
    return sorted(int(name) for name in store.children(paths.revisions(flow)))


def _holders_of_journals(store: ReadableStore) -> dict[str, set[str]]:
    """Flow -> the nodes that have journals of it."""
    holders: dict[str, set[str]] = {}
    for journal in journal_registry.journals(store).values():
        holders.setdefault(journal.flow, set()).add(journal.node)
    return holders


def _refuse_leftovers(flow: str, holders: Collection[str]) -> None:
    if holders:
        raise ConflictError(
            f"{', '.join(sorted(holders))} still has journals of a flow {flow} that was deleted: "
            "apply it again when they are gone, or under another name"
        )
