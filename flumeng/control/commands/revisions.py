"""Computes the next revisions of flows and their writes, with isolated parts and composed flows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flumeng.config.flow_names import is_part, parts_among, whole_of, why_not_applied
from flumeng.control.commands import chains, isolated_parts
from flumeng.control.commands.chains import subscribe
from flumeng.control.commands.connect_limits import not_on_connect
from flumeng.control.commands.isolated_parts import Leaving
from flumeng.control.commands.local_files import on_several_hosts
from flumeng.control.commands.lookup import (
    current_revisions,
    expect_current,
    found_by_name,
    kept_revisions,
    readable_by_name,
    refuse_deleted,
)
from flumeng.control.commands.operator import room_bytes
from flumeng.control.commands.tombstones import deleted_in_this_tree
from flumeng.control.commands.unfinished_writes import intents_of
from flumeng.control.snapshot import journal_registry
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Put,
    ReadableStore,
    Remove,
    Unreadable,
    Versioned,
    Write,
)
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.security.signing import signature
from zkschema import bootstrap, paths, records

KEEP_REVISIONS = 50
WRITE_CHARACTERS = 1000
SMALL_SHARE = 4
"""A change with fewer characters than 1/4 of a transaction's bytes certainly fits: not measured."""


class RefusedError(ConflictError):
    """No flow was applied; ``refused``: the reason by flow."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        self.refused = dict(refused)
        super().__init__("\n".join(refused.values()))


class UnfitError(RefusedError, UserError):
    """No flow was applied, since the authors have to change their texts."""


@dataclass(frozen=True)
class Applied:
    """An applied flow and its revision. ``left``: isolated parts that it lost. ``because``: why the
    text of another flow changed this one."""

    flow: str
    revision: int
    changed: bool
    left: tuple[Leaving, ...] = ()
    because: str = ""


@dataclass(frozen=True)
class NextRevision:
    """A flow's next revision; ``number`` is the current one for an unchanged text. ``runs``: the
    composed text that tasks run instead of ``text``; ``origin``: the last flow of the ``chain``.
    ``outdated``: revisions to remove. ``cursors``: writes that create its cursor at another flow,
    or begin this part. ``leaving``, ``left``: isolated parts that it loses."""

    flow: str
    text: str
    number: int
    current: Versioned[records.Flow] | None
    runs: str = ""
    state: str = "running"
    because: str = ""
    outdated: tuple[int, ...] = ()
    cursors: tuple[Write, ...] = ()
    leaving: Mapping[str, Versioned[records.Flow]] = field(default_factory=dict)
    left: tuple[Leaving, ...] = ()
    chain: Mapping[str, Versioned[records.Flow]] = field(default_factory=dict)
    origin: str = ""

    @property
    def effective(self) -> str:
        return self.runs or self.text

    @property
    def characters(self) -> int:
        """The size of the revision's writes, estimated from above."""
        writes = 8 + len(self.cursors) + len(self.leaving) + len(self.outdated)
        return len(self.text) + len(self.runs) + WRITE_CHARACTERS * writes

    @property
    def changed(self) -> bool:
        return self.current is None or self.number != self.current.value.revision

    @property
    def applied(self) -> Applied:
        left = self.left if self.changed else ()
        return Applied(self.flow, self.number, self.changed, left, self.because)


def next_revisions(
    store: ReadableStore, texts: Mapping[str, str], expect_revision: int | None = None
) -> list[NextRevision]:
    """Return the next revision of each flow, its isolated parts and the flows composed with it;
    flows that read no other first. Raises ``RefusedError`` for all that fail the same check."""
    _refuse({flow: why for flow in texts if (why := why_not_applied(flow))}, UnfitError)
    composed = chains.compose(store, texts)
    _refuse(composed.refused)
    effective = isolated_parts.with_parts({flow: c.effective for flow, c in composed.flows.items()})
    there = _flows_there(store, effective, composed, expect_revision)
    current = {  # an unreadable revision differs from any other
        flow: revision.value if isinstance(revision, Versioned) else None
        for flow, revision in current_revisions(store, there).items()
    }
    before = {flow: revision.effective if revision else None for flow, revision in current.items()}
    cursors, refused = subscribe(store, effective, before)
    _refuse({whole_of(flow): why for flow, why in refused.items()})
    targets = _Wanted(effective, composed, there, current, cursors)
    revisions = targets.revisions(store)
    changed = [revision for revision in revisions if revision.changed]
    new = {revision.flow: revision.effective for revision in changed}
    unfitting = {**on_several_hosts(store, new), **not_on_connect(store, new)}
    unfit = {whole_of(flow): why for flow, why in unfitting.items()}
    large = _too_large(store, changed)
    _refuse({**unfit, **large}, RefusedError if large else UnfitError)
    return revisions


def revision_writes(
    revisions: Iterable[NextRevision],
    schema: Versioned[records.Schema],
    author: str,
    reason: str,
    now: float,
    *,
    backfill_of: str = "",
) -> list[Write]:
    """Return the writes of one transaction that make new revisions current; a changed flow of a
    chain conflicts. Raises ``UserError`` for an unusable signing key."""
    changed = {next_.flow: next_ for next_ in revisions if next_.changed}
    writes: list[Write] = []
    for next_ in changed.values():
        revision = records.Revision(
            text=next_.text,
            runs=next_.runs,
            author=author,
            reason=next_.because or reason,
            time=now,
            signature=signature(next_.flow, next_.effective) or None,
        )
        text = Put(paths.revision(next_.flow, str(next_.number)), revision, ABSENT)
        if next_.current is None:
            new = records.Flow(revision=next_.number, state=next_.state, backfill_of=backfill_of)
            folders = bootstrap.flow_folders(next_.flow, schema.value.version)
            writes.append(Put(paths.flow(next_.flow), new, ABSENT))
            writes += [Put(folder, None, ABSENT) for folder in folders]
        else:
            record = replace(next_.current.value, revision=next_.number, went_back="")
            writes.append(Put(paths.flow(next_.flow), record, next_.current.version))
        writes += [text, *next_.cursors, *isolated_parts.deletion(next_.leaving)]
        writes += [Remove(paths.revision(next_.flow, str(old)), ANY) for old in next_.outdated]
    read = {name: record for next_ in changed.values() for name, record in next_.chain.items()}
    unchanged = {name: record for name, record in read.items() if name not in changed}
    return [
        *writes,
        *(Put(paths.flow(name), flow.value, flow.version) for name, flow in unchanged.items()),
    ]


def _too_large(store: ReadableStore, changed: Sequence[NextRevision]) -> dict[str, str]:
    """Return why each flow with a too large change is refused; small texts are not measured."""
    schema, scale = store.read(paths.schema()), store.scale
    refused: dict[str, str] = {}
    for group in groups(changed) if schema else ():
        if SMALL_SHARE * sum(revision.characters for revision in group) < scale.limit_bytes:
            continue
        assert schema is not None
        writes = revision_writes(group, schema, "", "", 0.0)
        size = scale.total(writes) + room_bytes(scale)
        if size > scale.limit_bytes:
            refused[group[0].flow] = why_too_large(group, size, scale.limit_bytes)
    return refused


def _refuse(refused: Mapping[str, str], kind: type[RefusedError] = RefusedError) -> None:
    if refused:
        raise kind(refused)


def _flows_there(
    store: ReadableStore,
    texts: Mapping[str, str],
    composed: chains.Composed,
    expect_revision: int | None,
) -> dict[str, Versioned[records.Flow]]:
    """Return the existing records. Raises ``RefusedError`` for flows that cannot change now."""
    others = [flow for flow in texts if flow not in composed.flows]
    records_by_flow = {flow: composed.records[flow] for flow in composed.flows}
    records_by_flow |= found_by_name(store, paths.flow, others)
    holders = _holders_of_journals(store) if None in records_by_flow.values() else {}
    left = [flow for flow, record in records_by_flow.items() if record is None and flow in holders]
    deleted = deleted_in_this_tree(store, left) if left else set()
    there: dict[str, Versioned[records.Flow]] = {}
    refused: dict[str, str] = {}
    for flow, record in records_by_flow.items():
        try:
            if isinstance(record, Unreadable):
                raise ConflictError(f"flow {flow}: {record}: see `flumeng schema verify`")
            applied = not is_part(flow) and not composed.flows[flow].because
            expect_current(flow, record, expect_revision if applied else None)
            if record is not None:
                refuse_deleted(flow, record.value, "apply it again when it is gone")
                there[flow] = record
            elif flow in deleted:
                raise ConflictError(
                    f"{', '.join(sorted(holders[flow]))} still has journals of a deleted flow "
                    f"{flow}: apply it again when they are gone, or under another name"
                )
        except ConflictError as error:
            refused[whole_of(flow)] = str(error)
    _refuse(refused)
    return there


def _holders_of_journals(store: ReadableStore) -> dict[str, set[str]]:
    holders: dict[str, set[str]] = {}
    for journal in journal_registry.journals(store).values():
        holders.setdefault(journal.flow, set()).add(journal.node)
    return holders


@dataclass(frozen=True)
class _Wanted:
    """The wanted ``texts``, and the existing records (``there``) and ``current`` revisions."""

    texts: Mapping[str, str]
    composed: chains.Composed
    there: Mapping[str, Versioned[records.Flow]]
    current: Mapping[str, records.Revision | None]
    cursors: Mapping[str, list[Write]]

    def revisions(self, store: ReadableStore) -> list[NextRevision]:
        parts_now = isolated_parts.parts_there(store, self.there)
        gone = {part: record for part, record in parts_now.items() if part not in self.texts}
        run_by_all = self._run_by_all(store)
        return [
            self._revision(store, flow, gone, run_by_all)
            for flow in sorted(self.texts, key=lambda flow: whole_of(flow) in self.cursors)
        ]

    def _revision(
        self,
        store: ReadableStore,
        flow: str,
        gone: Mapping[str, Versioned[records.Flow]],
        run_by_all: Mapping[str, int],
    ) -> NextRevision:
        text, whole, current = self.texts[flow], whole_of(flow), self.there.get(flow)
        composition = self.composed.flows.get(flow, chains.Composition(text))
        number = current.value.revision if current else 1
        outdated: tuple[int, ...] = ()
        if current and self._is_changed(flow):
            number, outdated = _numbers(store, flow, number, run_by_all.get(flow, 0))
        cursors = list(self.cursors.get(flow, ()))
        new_part = current is None and flow != whole and whole in self.there
        if new_part:
            cursors += isolated_parts.beginning(store, whole, self.texts[whole], flow)
        leaving = {name: gone[name] for name in parts_among(gone, flow)}
        chain = {name: self.composed.records.get(name) for name in composition.chain}
        return NextRevision(
            flow,
            composition.text,
            number,
            current,
            runs=composition.runs,
            state=self.there[whole].value.state if new_part else "running",
            because=composition.because,
            outdated=outdated,
            cursors=tuple(cursors),
            leaving=leaving,
            left=tuple(isolated_parts.leaving(store, flow, text, name) for name in leaving),
            chain={name: record for name, record in chain.items() if isinstance(record, Versioned)},
            origin=composition.chain[-1] if composition.chain else "",
        )

    def _is_changed(self, flow: str) -> bool:
        revision = self.current[flow]
        composition = self.composed.flows.get(flow)
        text = composition.text if composition else self.texts[flow]
        signed = signature(flow, self.texts[flow])
        return (
            revision is None
            or (revision.text, revision.effective) != (text, self.texts[flow])
            or signed not in ("", revision.signature)
        )

    def _run_by_all(self, store: ReadableStore) -> dict[str, int]:
        """Return, for each changed flow, the last revision that all its tasks have run."""
        changed = [flow for flow in self.there if self._is_changed(flow)]
        plans = readable_by_name(store, paths.plan, changed)
        return {flow: plan.value.revision for flow, plan in plans.items()}


def _numbers(
    store: ReadableStore, flow: str, current: int, run_by_all: int
) -> tuple[int, tuple[int, ...]]:
    """Return the next number, and the revisions to remove, which no rollout or batch needs."""
    kept = kept_revisions(store, flow)
    number = max([current, *kept]) + 1
    old = {past for past in kept if past <= number - KEEP_REVISIONS} - {run_by_all}
    if old:
        intents = intents_of(store, flow).values()
        old -= {intent.value.revision for intent in intents if isinstance(intent, Versioned)}
    return number, tuple(sorted(old))


def groups(revisions: Iterable[NextRevision]) -> list[list[NextRevision]]:
    """Group the revisions that have to change in one transaction, in order."""
    ordered = list(revisions)
    origins = {revision.flow: revision.origin for revision in ordered if revision.origin}
    grouped: dict[str, list[NextRevision]] = {}
    for revision in ordered:
        whole = whole_of(revision.flow)
        grouped.setdefault(origins.get(whole, whole), []).append(revision)
    return list(grouped.values())


def why_too_large(group: list[NextRevision], size_bytes: int, limit_bytes: int) -> str:
    origin = next((revision.origin for revision in group if revision.origin), "")
    subject, advice = f"flow {group[0].flow}", "make its text shorter"
    if origin:
        subject = f"{len(group)} flows and parts that read flow {origin} through filters of others"
        advice = "let fewer flows read `after: filters`, or apply new ones in smaller groups"
    elif len(group) > 1:
        subject += f" with its {len(group) - 1} isolated parts"
        advice = "make its text shorter, or isolate fewer of its sinks"
    return (
        f"{subject}: the change takes {size_bytes // 1024} KiB, and at most "
        f"{limit_bytes // 1024} KiB fit into a transaction: {advice}"
    )
