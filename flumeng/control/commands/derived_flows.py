"""Derived flows: backfills and replays of dead letters. A derived flow has the text of another
flow, a bounded source and its own acks; its discovery task stops it at the end of the source. A
replay and a purge rewrite the flow's record unchanged, so that concurrent ones conflict."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flumeng.config import FlowSpec, check_flow, parse_flow
from flumeng.config.component import OffsetBounds, TimeBounds
from flumeng.config.derived_texts import (
    bounded_by,
    offsets_text,
    replay_text,
    require_files,
    require_offsets,
    times_text,
)
from flumeng.config.flow_names import is_part, whole_of
from flumeng.control.commands.local_files import collecting_hosts
from flumeng.control.commands.lookup import (
    current_revisions,
    readable_by_name,
    require_flow,
    require_revision,
)
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import next_revisions, revision_writes
from flumeng.control.zookeeper import Put, ReadableStore, Store, Versioned, Write, tree
from flumeng.platform.errors import UserError
from flumeng.platform.options.locations import InStore, place_of
from flumeng.platform.options.problems import SpecError
from zkschema import paths, records

NAME_CHARACTERS = 63
SUFFIX_CHARACTERS = 16
NAMED = 100
Bounds = Mapping[str, tuple[int, int]]
"""First offset and end by label of a partition, such as ``orders.3``."""
ID_CHARACTERS = 8


def free_name(store: ReadableStore, flow: str, kind: str) -> str:
    """Return an unused name ``FLOW-KIND-N``; names of deleted flows (tombstones) count as used."""
    used = {*store.children(paths.flows()), *store.children(paths.tombstones())}
    number = 1
    while (name := f"{flow[: NAME_CHARACTERS - SUFFIX_CHARACTERS]}-{kind}-{number}") in used:
        number += 1
    return name


def require_allowed(store: Store, text: str, name: str) -> None:
    """Check that ``start`` would accept the text; raises the same errors."""
    check_flow(text)
    next_revisions(store, {name: text}, 0)


def start(
    operator: Operator,
    text: str,
    name: str,
    *,
    of: str,
    kind: str,
    command: str,
    others: Sequence[Write] = (),
) -> None:
    """Create the flow ``name``, a ``kind`` of the flow ``of``, in one transaction with ``others``.
    Raises ``SpecError``, ``RefusedError``."""
    check_flow(text)
    schema = tree.require_versioned(operator.store)
    revisions = next_revisions(operator.store, {name: text}, 0)
    why = f"{kind} of {of}: {operator.reason}" if operator.reason else f"{kind} of {of}"
    writes = revision_writes(revisions, schema, operator.author, why, operator.now, backfill_of=of)
    operator.commit([*others, *writes], command)


def _effective(store: Store, flow: str) -> str:
    return require_revision(store, flow, require_flow(store, flow).value.revision).effective


def current_text(store: Store, flow: str) -> str:
    """Return the flow's current text. Raises ``UserError`` for a flow that cannot be backfilled."""
    text = _effective(store, flow)
    require_offsets(flow, parse_flow(text))
    return text


@dataclass(frozen=True)
class Written:
    """A range of write times: ``start`` (empty: open) is inclusive, ``end`` exclusive. ``paths``:
    those to read; empty: the paths in the flow's text."""

    start: str
    end: str
    paths: tuple[str, ...] = ()


def backfills_objects(store: Store, flow: str, paths: Collection[str]) -> bool:
    """Return whether a backfill reads objects. Raises UserError for ``paths`` without objects."""
    spec = parse_flow(_effective(store, flow))
    objects = bool(bounded_by(spec, TimeBounds))
    if paths and not objects:
        raise UserError(f"flow {flow} reads no objects: remove --path")
    return objects and (bool(paths) or not bounded_by(spec, OffsetBounds))


def start_objects_backfill(operator: Operator, flow: str, name: str, written: Written) -> None:
    """Create the backfill flow ``name`` over objects. Raises as ``start_backfill``."""
    text = times_text(
        _effective(operator.store, flow), name, written.paths, written.start, written.end
    )
    times = f"written from {written.start or 'ever'} before {written.end}"
    where = f" at {', '.join(written.paths)}" if written.paths else ""
    command = f"flow backfill {flow} as {name}: {times}{where}"
    start(operator, text, name, of=flow, kind="backfill", command=command)


def start_backfill(operator: Operator, flow: str, name: str, bounds: Bounds) -> None:
    """Create the backfill flow ``name`` over these offsets. Raises ``SpecError``, and ``UserError``
    for empty bounds or a flow without offsets."""
    text = offsets_text(current_text(operator.store, flow), name, bounds)
    named = list(bounds.items())[:NAMED]
    ranges = ", ".join(f"{label} {start}-{end}" for label, (start, end) in named)
    command = f"flow backfill {flow} as {name}: {ranges}"
    start(operator, text, name, of=flow, kind="backfill", command=command)


def within(starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the nonempty ranges by partition. Raises ``UserError`` when all are empty."""
    ranges = {name: (starts[name], ends[name]) for name in starts if starts[name] < ends[name]}
    if not ranges:
        raise UserError("no partition has anything between --from and --to")
    return ranges


@dataclass(frozen=True)
class DeadLettersOf:
    """A flow with dead letters in ``files``. ``current``: the list that each replay flow reads."""

    flow: str
    record: Versioned[records.Flow]
    text: str
    files: InStore
    current: dict[str, str]


def dead_letters_of(store: ReadableStore, flow: str) -> DeadLettersOf:
    """Return the flow's dead letters. Raises ``UserError`` for none or unreadable ones, and for
    derived flows and isolated parts."""
    record = require_flow(store, flow)
    if is_part(flow):
        raise UserError(
            f"flow {flow} is a part of flow {whole_of(flow)} and shares its dead letters: name "
            "that flow"
        )
    if record.value.backfill_of:
        raise UserError(
            f"flow {flow} is a replay or backfill of flow {record.value.backfill_of} and shares "
            "its dead letters: name that flow"
        )
    text = require_revision(store, flow, record.value.revision).effective
    files = require_files(flow, parse_flow(text))
    current = {
        name: source.replay_list
        for name, spec, of in _others(store, flow)
        if of == flow
        for source in (part.options for part in spec.sources)
        if source.replay_list
    }
    return DeadLettersOf(flow, record, text, files, current)


def require_own_place(store: ReadableStore, letters: DeadLettersOf) -> None:
    """Raises ``UserError`` when another flow writes its dead letters into the same directory."""
    own = place_of(letters.files.path)
    for name, spec, of in _others(store, letters.flow, letters.files.path):
        files = spec.dead_letters.options.dead_letter_files if spec.dead_letters else None
        if letters.flow in (of, whole_of(name)):
            continue
        if files is not None and place_of(files.path) == own:
            raise UserError(
                f"flow {name} has its dead letters in {letters.files.path} too: give each flow a "
                "directory of its own"
            )


def refuse_hosts(store: ReadableStore, letters: DeadLettersOf) -> None:
    """Raises ``UserError`` when the dead letters are on local disks of several hosts."""
    if not letters.files.local_path:
        return
    hosts = collecting_hosts(store, parse_flow(letters.text))
    if len(hosts) > 1:
        raise UserError(
            f"{letters.files.path} is a local directory of each of {len(hosts)} hosts that may "
            f"collect flow {letters.flow} ({', '.join(hosts[:3])}): a replay reads only that of "
            "its host. Set `shared: true` in dead_letters if all see the same files there, write "
            "to a URL, or let `place.collect.labels` select one host"
        )


def list_name(flow: str) -> str:
    """Return a new unique name for the replay list of ``flow``."""
    short = flow[: NAME_CHARACTERS - ID_CHARACTERS - 1]
    return f"{short}-{uuid.uuid4().hex[:ID_CHARACTERS]}"


def check_replay(store: Store, letters: DeadLettersOf, name: str) -> None:
    """Check that ``start_replay`` would succeed, before a list is written; raises its errors."""
    text = replay_text(letters.flow, letters.text, name, list_name(name), [1])
    require_allowed(store, text, name)


def start_replay(
    operator: Operator,
    letters: DeadLettersOf,
    name: str,
    replay: str,
    rows: Sequence[int],
    *,
    chosen: str,
) -> None:
    """Create the flow ``name`` that reads the list ``replay``; ``chosen``: text for the audit.
    Raises ``SpecError``, and ``ConflictError`` when the flow changed since it was read."""
    flow = letters.flow
    text = replay_text(flow, letters.text, name, replay, rows)
    start(
        operator,
        text,
        name,
        of=flow,
        kind="replay of dead letters",
        command=f"flow dead replay {flow} as {name}: {chosen}",
        others=[_unchanged(letters)],
    )


def note_purge(operator: Operator, letters: DeadLettersOf, purged: str) -> None:
    """Audit a purge before files are deleted. Raises ``ConflictError`` if the flow has changed."""
    command = f"flow dead purge {letters.flow}: {purged}"
    operator.commit([_unchanged(letters)], command)


def _unchanged(letters: DeadLettersOf) -> Put:
    return Put(paths.flow(letters.flow), letters.record.value, letters.record.version)


def _others(
    store: ReadableStore, flow: str, holding: str = ""
) -> Iterator[tuple[str, FlowSpec, str]]:
    """Yield name, specification and original of other flows: those derived from ``flow``, or all
    with ``holding`` in the text."""
    names = [name for name in store.children(paths.flows()) if name != flow]
    flows = {
        name: record
        for name, record in readable_by_name(store, paths.flow, names).items()
        if holding or record.value.backfill_of == flow
    }
    for name, revision in current_revisions(store, flows).items():
        if not isinstance(revision, Versioned) or holding not in revision.value.effective:
            continue
        try:
            yield name, parse_flow(revision.value.effective), flows[name].value.backfill_of
        except SpecError:
            continue
