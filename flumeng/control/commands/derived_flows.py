"""Derived flows: backfills, and replays of dead letters.

A derived flow delivers a part of what another flow had once more, beside that one: it has its text,
another source, which has ends, and acks of its own. So its discovery task stops it when all is
read, and the other flow notices nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from flumeng.config import check_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import next_revisions, revision_writes
from flumeng.control.zookeeper import ReadableStore, Store, Write, tree
from zkschema import paths

NAME_CHARACTERS = 63
SUFFIX_CHARACTERS = 16


def free_name(store: ReadableStore, flow: str, kind: str) -> str:
    """``FLOW-KIND-N``, which no flow has and none had that is remembered."""
    used = {*store.children(paths.flows()), *store.children(paths.tombstones())}
    number = 1
    while (name := f"{flow[: NAME_CHARACTERS - SUFFIX_CHARACTERS]}-{kind}-{number}") in used:
        number += 1
    return name


def require_allowed(store: Store, text: str, name: str) -> None:
    """Raises what ``start`` would raise before it writes: ``SpecError``, ``RefusedError``,
    ``UnavailableError``."""
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
    """Make the flow ``name`` of this text, in which nothing is isolated: a ``kind`` of the flow
    ``of``. It runs at once. ``others`` are written in the same transaction. Raises as
    ``require_allowed``, and ``ConflictError`` when there is a flow of that name or ``others``
    fail."""
    check_flow(text)
    schema = tree.require_versioned(operator.store)
    wanted = next_revisions(operator.store, {name: text}, 0)
    why = f"{kind} of {of}: {operator.reason}" if operator.reason else f"{kind} of {of}"
    writes = revision_writes(wanted, schema, operator.author, why, operator.now, backfill_of=of)
    operator.commit([*others, *writes], command)
