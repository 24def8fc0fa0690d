"""Replays: chosen dead letters of a flow go through its current revision, beside the live flow.

A replay is a derived flow. Which letters it reads stands in a list beside the letters, which is
written first; its source says how many rows the list has.

A replay and a purge write the flow's record as they found it: of two that begin at once one loses,
and looks again at what the other has taken.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flumeng.config import FlowSpec, parse_flow
from flumeng.config.flow_names import is_part, whole_of
from flumeng.config.replay import replay_text, require_files
from flumeng.control.commands import derived_flows
from flumeng.control.commands.flow_records import require_flow, require_revision
from flumeng.control.commands.local_files import collecting_hosts
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Put, ReadableStore, Store, Unreadable, Versioned
from flumeng.platform.errors import UserError
from flumeng.platform.options.locations import InStore, place_of
from flumeng.platform.options.problems import SpecError
from zkschema import paths, records

ID_CHARACTERS = 8


@dataclass(frozen=True)
class LettersOf:
    """A flow whose dead letters are in files, as it is now. ``files`` is the sink for them.
    ``current``: the lists of its replays that are flows now, by the name of the flow."""

    flow: str
    record: Versioned[records.Flow]
    text: str
    files: InStore
    current: dict[str, str]


def letters_of(store: ReadableStore, flow: str) -> LettersOf:
    """Raises ``UserError`` for a flow whose dead letters cannot be read here, or that is a replay,
    a backfill or a part of another one, ``UnavailableError``."""
    record = require_flow(store, flow)
    if is_part(flow):
        raise UserError(
            f"the dead letters of flow {flow} lie with those of flow {whole_of(flow)}, of which it "
            "is a part: name that one"
        )
    if record.value.backfill_of:
        raise UserError(
            f"the dead letters of flow {flow} are those of flow {record.value.backfill_of}, of "
            "which it is a replay or backfill: name that one"
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
    return LettersOf(flow, record, text, files, current)


def require_own_place(store: ReadableStore, letters: LettersOf) -> None:
    """Raises ``UserError`` when another flow, but for its isolated parts, writes its dead letters
    into the same directory: nobody could tell whose they are."""
    own = place_of(letters.files.path)
    for name, spec, of in _others(store, letters.flow, letters.files.path):
        files = spec.dead_letters.options.letter_files if spec.dead_letters else None
        if letters.flow in (of, whole_of(name)):
            continue
        if files is not None and place_of(files.path) == own:
            raise UserError(
                f"the dead letters of flow {name} are in {letters.files.path} too, so nobody can "
                "tell whose they are: give each flow a directory of its own"
            )


def refuse_hosts(store: ReadableStore, letters: LettersOf) -> None:
    """Raises ``UserError`` for letters on the disks of several hosts: no one host can read all."""
    if not letters.files.local_path:
        return
    hosts = collecting_hosts(store, parse_flow(letters.text))
    if len(hosts) > 1:
        raise UserError(
            f"{letters.files.path} is a directory of each of {len(hosts)} hosts that may collect "
            f"flow {letters.flow} ({', '.join(hosts[:3])}): a replay could not read those of the "
            "others. Say `shared: true` in dead_letters when all see the same files there, write "
            "to a URL, or let `place.collect.labels` name one host"
        )


def list_name(flow: str) -> str:
    """A name for the list of the replay ``flow`` that no list ever had."""
    short = flow[: derived_flows.NAME_CHARACTERS - ID_CHARACTERS - 1]
    return f"{short}-{uuid.uuid4().hex[:ID_CHARACTERS]}"


def check_replay(store: Store, letters: LettersOf, name: str) -> None:
    """Raises what ``start_replay`` would raise for the name and text, before a list is written."""
    text = replay_text(letters.flow, letters.text, name, list_name(name), [1])
    derived_flows.require_allowed(store, text, name)


def start_replay(
    operator: Operator,
    letters: LettersOf,
    name: str,
    replay: str,
    rows: Sequence[int],
    *,
    chosen: str,
) -> None:
    """Make the flow ``name``, which reads the list ``replay`` of so many ``rows`` at once.
    ``chosen`` is what the audit says of the letters.

    Raises ``SpecError``, ``ConflictError`` when there is a flow of that name, or the flow has
    changed since it was looked at, ``UnavailableError``.
    """
    flow = letters.flow
    text = replay_text(flow, letters.text, name, replay, rows)
    derived_flows.start(
        operator,
        text,
        name,
        of=flow,
        kind="replay of dead letters",
        command=f"flow dead replay {flow} as {name}: {chosen}",
        others=[_unchanged(letters)],
    )


def note_purge(operator: Operator, letters: LettersOf, purged: str) -> None:
    """Before anything is deleted. Raises ``ConflictError`` when the flow has changed since it was
    looked at, ``UnavailableError``."""
    command = f"flow dead purge {letters.flow}: {purged}"
    operator.commit([_unchanged(letters)], command)


def _unchanged(letters: LettersOf) -> Put:
    return Put(paths.flow(letters.flow), letters.record.value, letters.record.version)


def _others(
    store: ReadableStore, flow: str, holding: str = ""
) -> Iterator[tuple[str, FlowSpec, str]]:
    """The other flows that can be read, and which they are backfills or replays of: all these of
    ``flow``, or those whose text has ``holding`` in it."""
    names = [name for name in store.children(paths.flows()) if name != flow]
    found = zip(names, store.read_each([paths.flow(name) for name in names]), strict=True)
    flows = {
        name: record.value
        for name, record in found
        if isinstance(record, Versioned) and (holding or record.value.backfill_of == flow)
    }
    revisions = store.read_each(
        [paths.revision(name, str(record.revision)) for name, record in flows.items()]
    )
    for (name, record), revision in zip(flows.items(), revisions, strict=True):
        if (
            revision is None
            or isinstance(revision, Unreadable)
            or holding not in revision.value.effective
        ):
            continue
        try:
            yield name, parse_flow(revision.value.effective), record.backfill_of
        except SpecError:
            continue
