"""Changes of flows. A flow's text only ever changes by a new revision, also when it goes back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from flumeng.errors import ConflictError, FlumengError, UserError
from flumeng.operations import audit, parts
from flumeng.operations.compositions import Composition, compositions
from flumeng.operations.local_files import on_several_hosts
from flumeng.operations.parts import Leaving
from flumeng.operations.settings import without_chokes
from flumeng.operations.subscriptions import subscribe, why_not_deleted
from flumeng.operations.tombstones import tombstone_writes
from flumeng.spec import check_flow
from flumeng.spec.flow_names import is_part, parts_among, whole_of, why_not_applied
from flumeng.spec.problems import nearest
from flumeng.state import journal_registry
from flumeng.store import (
    ABSENT,
    ANY,
    WIRE_LIMIT_BYTES,
    Check,
    Found,
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
    """What became of an apply: the flow's revision now, and whether this call made it. ``left``:
    the isolated parts that it has no more. Each other part is an ``Applied`` of its own, and so is
    each flow that changes ``because`` of one that is applied."""

    flow: str
    revision: int
    changed: bool
    left: tuple[Leaving, ...] = ()
    because: str = ""


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
    the flow that it reads, when there is none yet, and says where that begins. ``state`` is that of
    a new flow. ``leaving`` are the isolated parts that it has no more. ``runs`` is what its tasks
    run instead of ``text``, ``made_of`` the flows of which that is made, ``root`` the
    one of them whose journals it reads, ``because`` why it changes
    although nobody applies it."""

    flow: str
    text: str
    current: Versioned[records.Flow] | None
    number: int
    kept: tuple[int, ...] = ()
    run_by_all: int = 0
    decided: frozenset[int] = frozenset()
    cursors: tuple[Write, ...] = ()
    state: str = "running"
    leaving: Mapping[str, Versioned[records.Flow]] = field(default_factory=dict)
    left: tuple[Leaving, ...] = ()
    runs: str = ""
    made_of: Mapping[str, Versioned[records.Flow]] = field(default_factory=dict)
    root: str = ""
    because: str = ""

    @property
    def effective(self) -> str:
        """The text that its tasks run."""
        return self.runs or self.text

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
        left = self.left if self.changed else ()
        return Applied(self.flow, self.number, self.changed, left, self.because)


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
    made = apply_flows(
        store, {name: text}, author=author, reason=reason, now=now, expect_revision=expect_revision
    )
    return next(one for one in chain.from_iterable(made) if one.flow == name)


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
    anew. A flow's isolated parts are made, changed and deleted with it, and flows that read it
    ``after: filters`` get a revision of the same text with its filters.

    All are written in one transaction while that fits; then in the order of ``texts`` in as few as
    possible, none of which parts a flow from its parts or from flows that are made of it, and what
    each has applied is given when it is done. Raises ``RefusedError`` before anything is written,
    ``ConflictError`` and ``UnavailableError`` for the transaction that failed.
    """
    schema = tree.require_versioned(store)
    wanted = next_revisions(store, texts, expect_revision)
    refuse_several_hosts(store, wanted)
    refuse_too_old(schema.value, wanted)
    yield [one.applied for one in wanted if not one.changed]
    changed = [one for one in wanted if one.changed]
    for part in _in_transactions(
        [(one, revision_writes(one, schema, author, reason, now)) for one in together]
        for together in _whole_flows(changed)
    ):
        said = ", ".join(f"{one.flow} (revision {one.number})" for one, _ in part)
        entry = records.Audit(who=author, command=f"flow apply {said}", reason=reason, time=now)
        unchanged = Check(paths.schema(), schema.version)  # it tells which folders a flow has
        writes = [write for _, made in part for write in made]
        audit.commit(store, [unchanged, *writes, *touched(one for one, _ in part)], entry)
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
    if is_part(flow):
        raise UserError(
            f"{flow} is an isolated part of flow {whole_of(flow)}, which goes back as a whole: "
            f"`flumeng flow rollback {whole_of(flow)} N`"
        )
    text = require_revision(store, flow, number).text
    check_flow(text)
    why = f"rollback to revision {number}"
    schema = tree.require_versioned(store)
    wanted = next_revisions(store, {flow: text}, expect_revision)
    whole = next(one for one in wanted if one.flow == flow)
    if whole.current is None:
        raise ConflictError(f"flow {flow} was deleted meanwhile")
    refuse_several_hosts(store, wanted)
    refuse_too_old(schema.value, wanted)
    changed = [one for one in wanted if one.changed]
    if changed:
        because = f"{why}: {reason}" if reason else why
        command = f"flow rollback {flow} {number} (revision {whole.number})"
        entry = records.Audit(who=author, command=command, reason=because, time=now)
        writes = (revision_writes(one, schema, author, because, now) for one in changed)
        audit.commit(store, [*chain.from_iterable(writes), *touched(changed)], entry)
    return whole.applied


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
    """Want the flow ``running``, ``suspended`` or ``stopped``, and its isolated parts too; gives
    whether that is a change.

    Suspended: its collect tasks are let go, its sources go on into the journals. Stopped: its
    sources stop, what they accepted is collected to its end. Raises ``UserError`` for a flow that
    does not exist, ``ConflictError``, ``UnavailableError``.
    """
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    refuse_deleted(flow, current.value, f"it cannot become {state} any more")
    every = {flow: current, **parts.parts_there(store, [flow])}
    writes = [
        Put(paths.flow(name), replace(found.value, state=state), found.version)
        for name, found in every.items()
        if found.value.state != state
    ]
    if writes:
        command = f"flow {VERBS[state]} {flow}"
        audit.commit(
            store, writes, records.Audit(who=author, command=command, reason=reason, time=now)
        )
    return bool(writes)


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
    currents = dict(zip(flows, store.read_each([paths.flow(flow) for flow in flows]), strict=True))
    there: dict[str, Versioned[records.Flow]] = {}
    for flow, current in {**parts.parts_there(store, flows), **currents}.items():
        if not isinstance(current, Versioned) or current.value.state == "deleted":
            raise ConflictError(f"flow {flow} has to be looked at by itself")
        there[flow] = current
    changed = {flow: found for flow, found in there.items() if found.value.state != state}
    outcomes = [
        StateOutcome(flow, flow in changed or bool(parts_among(changed, flow))) for flow in flows
    ]
    if changed:
        writes = [
            Put(paths.flow(flow), replace(found.value, state=state), found.version)
            for flow, found in changed.items()
        ]
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
    """Want the flow gone, and its isolated parts with it; masters drain it first, or with
    ``discard`` drop what is not collected.

    Its chokes go at once: its sources stop, and the next flow of that name is another one. Its
    history stays readable (``/tombstones``).
    Gives whether this call changed anything. Raises ``UserError`` for a flow that does not exist,
    ``ConflictError``, ``UnavailableError``.
    """
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    if is_part(flow) and store.exists(paths.flow(whole_of(flow))):
        raise UserError(
            f"{flow} is an isolated part of flow {whole_of(flow)}: apply that without it"
        )
    if why := why_not_deleted(store, flow):
        raise ConflictError(why)
    wanted = replace(current.value, state="deleted", discard=discard or current.value.discard)
    others = parts.parts_there(store, [flow])
    if wanted == current.value and not others:
        return False
    command = f"flow delete {flow}{' --discard' if discard else ''}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    writes = [
        Put(paths.flow(flow), wanted, current.version),
        *parts.deletion(others, discard=wanted.discard),
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
    """What an apply of these texts makes of each flow, and of its isolated parts, which follow it.
    Raises ``RefusedError`` for all together that may not be applied now."""
    refused = {flow: why for flow in texts if (why := why_not_applied(flow))}
    if refused:
        raise RefusedError(refused)
    found = compositions(store, texts)
    if found.refused:
        raise RefusedError(found.refused)
    texts = parts.with_parts({flow: one.effective for flow, one in found.made.items()})
    others = [name for name in texts if name not in found.made]
    currents = {name: found.flows[name] for name in found.made}
    currents |= zip(others, store.read_each([paths.flow(name) for name in others]), strict=True)
    holders = _holders_of_journals(store) if None in currents.values() else {}
    there: dict[str, Versioned[records.Flow]] = {}
    for flow, current in currents.items():
        try:
            if isinstance(current, Unreadable):
                raise ConflictError(f"flow {flow} cannot be read: `flumeng schema verify --fix`")
            applied = not is_part(flow) and not found.made[flow].because
            expect_current(flow, current, expect_revision if applied else None)
            if current is None:
                _refuse_leftovers(flow, holders.get(flow, set()))
            else:
                refuse_deleted(flow, current.value, "apply it again when it is gone")
                there[flow] = current
        except ConflictError as error:
            refused[whole_of(flow)] = str(error)
    if refused:
        raise RefusedError(refused)
    revisions = _current_revisions(store, there)
    before = {flow: one.effective if one else None for flow, one in revisions.items()}
    cursors, refused = subscribe(store, texts, before)
    if refused:
        raise RefusedError({whole_of(flow): why for flow, why in refused.items()})
    written = {**texts, **{flow: one.text for flow, one in found.made.items()}}
    changed = [
        flow
        for flow, one in revisions.items()
        if one is None or (one.text, one.effective) != (written[flow], texts[flow])
    ]
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
    gone = {
        part: found for part, found in parts.parts_there(store, there).items() if part not in texts
    }
    made = []
    for flow, one in sorted(following.items(), key=lambda item: whole_of(item[0]) in cursors):
        whole, writes = whole_of(flow), list(cursors.get(flow, ()))
        if flow != whole and one.current is None and whole in there:
            writes += parts.beginning(store, whole, texts[whole], flow)
            one = replace(one, state=there[whole].value.state)  # noqa: PLW2901
        leaving = {name: gone[name] for name in parts_among(gone, flow)}
        left = tuple(parts.leaving(store, flow, texts[flow], name) for name in leaving)
        one = replace(one, cursors=tuple(writes), leaving=leaving, left=left)  # noqa: PLW2901
        made.append(_composed(one, found.made[flow], found.flows) if flow in found.made else one)
    for together in _whole_flows(made):
        _refuse_too_many(together)
    return made


def refuse_several_hosts(store: ReadableStore, wanted: Iterable[NextRevision]) -> None:
    """Raises ``RefusedError`` for those that this changes; see ``local_files``."""
    refused = on_several_hosts(store, {one.flow: one.effective for one in wanted if one.changed})
    if refused:
        raise RefusedError({whole_of(flow): why for flow, why in refused.items()})


def refuse_too_old(schema: records.Schema, wanted: Iterable[NextRevision]) -> None:
    """Raises ``RefusedError`` for those that this changes of which a tree that is as old has no
    place: for what their tasks decide, or for isolated parts."""
    since = paths.intent.since
    changed = [one for one in wanted if one.changed]
    refused = {
        whole_of(one.flow): why for one in changed if (why := parts.why_too_old(schema, one.flow))
    }
    if not refused and schema.version >= since:
        return
    refused |= {
        one.flow: f"flow {one.flow} delivers exactly once to a target that knows batches by number:"
        f" that takes a tree of version {since}, and this one has {schema.version} "
        "(`flumeng schema migrate --finish`)"
        for one in changed
        if schema.version < since and check_flow(one.effective).by_batch
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


def _current_revisions(
    store: ReadableStore, flows: Mapping[str, Versioned[records.Flow]]
) -> dict[str, records.Revision | None]:
    """None where there is none that can be read: whatever is applied is another one."""
    wanted = [paths.revision(flow, str(it.value.revision)) for flow, it in flows.items()]
    found = store.read_each(wanted)
    return {
        flow: revision.value if isinstance(revision, Versioned) else None
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
    revision = records.Revision(
        text=one.text, runs=one.runs, author=author, reason=one.because or reason, time=now
    )
    text = Put(paths.revision(one.flow, str(one.number)), revision, ABSENT)
    if one.current is None:
        folders = bootstrap.flow_folders(one.flow, schema.value.version)
        new = records.Flow(revision=one.number, state=one.state, backfill_of=backfill_of)
        flow = Put(paths.flow(one.flow), new, ABSENT)
        return [flow, *(Put(folder, None, ABSENT) for folder in folders), text, *one.cursors]
    record = replace(one.current.value, revision=one.number, went_back="")
    return [
        Put(paths.flow(one.flow), record, one.current.version),
        text,
        *one.cursors,
        *parts.deletion(one.leaving),
        *(Remove(paths.revision(one.flow, str(number)), ANY) for number in one.outdated),
    ]


def touched(wanted: Iterable[NextRevision]) -> list[Write]:
    """What goes last into the transaction that changes these flows: it holds only while those are
    as they were of which they are made, and whoever changes one of those meanwhile is refused."""
    changed = [one for one in wanted if one.changed]
    written = {one.flow for one in changed}
    others = {name: found for one in changed for name, found in one.made_of.items()}
    return [
        Put(paths.flow(name), found.value, found.version)
        for name, found in others.items()
        if name not in written
    ]


def _composed(
    one: NextRevision, composition: Composition, flows: Mapping[str, Found[records.Flow]]
) -> NextRevision:
    """With what its author wrote, and of what it is made."""
    of = {name: flows.get(name) for name in composition.made_of}
    there = {name: found for name, found in of.items() if isinstance(found, Versioned)}
    return replace(
        one,
        text=composition.text,
        runs=composition.runs,
        made_of=there,
        root=composition.made_of[-1] if composition.made_of else "",
        because=composition.because,
    )


def _refuse_too_many(together: Sequence[NextRevision]) -> None:
    """Raises ``RefusedError`` for flows that are made of each other and do not fit into one
    transaction."""
    changed = [one for one in together if one.changed]
    root = next((one.root for one in changed if one.root), "")
    size = sum(
        len(one.text.encode()) + len(one.runs.encode()) + _writes_of(one) * WRITE_BYTES
        for one in changed
    )
    if root and size > TRANSACTION_BYTES:
        raise RefusedError(
            {
                changed[0].flow: f"{len(changed)} flows and parts that read flow {root} through "
                f"filters of others change together: that takes {size // 1024} KiB, and at most "
                f"{TRANSACTION_BYTES // 1024} KiB fit into a transaction: let fewer flows read "
                "`after: filters`, or apply new ones in smaller groups"
            }
        )


def _writes_of(one: NextRevision) -> int:
    return 10 if one.current is None else 3


Planned = tuple[NextRevision, list[Write]]


def _whole_flows(wanted: Sequence[NextRevision]) -> Iterator[list[NextRevision]]:
    """Each flow with its parts, and with the flows that are made of the same one."""
    roots = {one.flow: one.root for one in wanted if one.root}
    groups: dict[str, list[NextRevision]] = {}
    for one in wanted:
        whole = whole_of(one.flow)
        groups.setdefault(roots.get(whole, whole), []).append(one)
    yield from groups.values()


def _in_transactions(planned: Iterable[list[Planned]]) -> Iterator[list[Planned]]:
    """In order and in as few parts as fit; what stands together stays together."""
    part: list[Planned] = []
    room = TRANSACTION_BYTES
    for together in planned:
        size = sum(
            len((one.text + one.runs).encode()) + len(writes) * WRITE_BYTES
            for one, writes in together
        )
        if part and size > room:
            yield part
            part, room = [], TRANSACTION_BYTES
        part += together
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
