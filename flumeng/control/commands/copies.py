"""Changes of who holds a replicated journal, and of who leads it, as an operator wants them.

Each is a compare-and-set of the journal's record: nodes and masters that change it meanwhile make
it fail, and then nothing was done.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from flumeng.config import SpecError, parse_flow
from flumeng.config.replicas import Replicas
from flumeng.control.commands.nodes import require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.journal_registry import Source, as_named
from flumeng.control.snapshot.rendezvous import chosen
from flumeng.control.zookeeper import (
    ABSENT,
    Expected,
    Put,
    ReadableStore,
    Store,
    Unreadable,
    Version,
    Versioned,
    tree,
)
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths
from zkschema.records import COPY, Journal


@dataclass(frozen=True)
class Change:
    """What is to become of the record of the journal ``name``, which is ``before`` at
    ``version``, or lost. ``command`` is what the audit says."""

    name: str
    before: Journal | None
    version: Expected
    after: Journal
    command: str

    @property
    def leaves_sync(self) -> bool:
        """Whether fewer copies are in sync after it."""
        return self.before is not None and len(self.after.in_sync) < len(self.before.in_sync)


def carry_out(operator: Operator, change: Change) -> None:
    """Raises ``ConflictError`` when the record is another one meanwhile, ``UnavailableError``."""
    operator.commit([Put(paths.journal(change.name), change.after, change.version)], change.command)


def promote(store: Store, name: str, to: str | None) -> Change | None:
    """Let a copy in sync lead: that of the node ``to``, or any other than the primary whose node is
    live. None when it leads already.

    Raises ``UserError`` for what is no replicated journal, ``ConflictError`` when no such copy is
    in sync and live.
    """
    journal, version = require_replicated(store, name)
    copies = {node_of(copy): copy for copy in journal.in_sync}
    if to is None:
        live = [node for node in copies if node != journal.primary and _is_live(store, node)]
        to = chosen(name, live)
        if to is None:
            raise ConflictError(
                f"no other copy of {name} is in sync and live ({_in_sync(journal)}): wait for one, "
                "or give up what only those have with --to NODE --unclean"
            )
    if to == journal.primary:
        return None
    if to not in copies:
        raise ConflictError(
            f"node {to} is not in sync ({_in_sync(journal)}): answered events may be missing "
            "there; wait, or give those up with --unclean"
        )
    _require_live(store, to)
    after = Membership.of(journal).promoted(copies[to]).put_into(journal)
    return Change(name, journal, version, after, f"journal promote {name} --to {to}")


def promote_unclean(store: Store, name: str, to: str) -> Change:
    """Let the copy of a node lead that is not in sync, in another lineage: what only those in sync
    have is given up. A copy of which nobody has told its id is ``NODE/``, and gets it by its node.
    So may one whose record was lost, where an older export was imported.

    Raises as ``promote``, and ``ConflictError`` while one in sync is live, unless its node says
    that it is lost or damaged there.
    """
    if as_named(name).node and name not in store.children(paths.journals()):
        return _begin_record(store, name, to)
    journal, version = require_replicated(store, name)
    live = [node for node in map(node_of, journal.in_sync) if _could_lead(store, node, name)]
    if live:
        raise ConflictError(
            f"the copy of {live[0]} is in sync and live: nothing has to be given up; let it lead "
            f"with `flumeng journal promote {name} --to {live[0]}`, if it does not"
        )
    if to not in journal.copies:
        raise UserError(f"node {to} holds no copy of {name}: expected one of {_copies(journal)}")
    _require_live(store, to)
    after = Membership.of(journal).promoted_unclean(f"{to}/", uuid.uuid4().hex).put_into(journal)
    command = f"journal promote {name} --to {to} --unclean: gave up what only {_names(journal)} had"
    return Change(name, journal, version, after, command)


def _begin_record(store: Store, name: str, node: str) -> Change:
    tree.require(store)
    named = as_named(name)
    if named.flow not in store.children(paths.flows()):
        raise UserError(f"there is no flow {named.flow} that would collect {name}: apply it first")
    _require_live(store, node)
    journal = replace(
        named,
        primary=node,
        term=1,
        in_sync=(f"{node}/",),
        copies=(node,),
        lineage=uuid.uuid4().hex,
    )
    command = f"journal promote {name} --to {node} --unclean: its record was lost"
    return Change(name, None, ABSENT, journal, command)


def add_copy(store: Store, name: str, node: str) -> Change | None:
    """Let a node hold one copy more; None when it is to do so already.

    Raises ``UserError`` for what is no replicated journal and for a node that may not hold one,
    ``ConflictError`` for a journal that is closed.
    """
    journal, version = _require_open(store, name)
    if node in journal.copies and node not in journal.leaving:
        return None
    _require_holder(store, node)
    after = replace(
        journal,
        copies=tuple(dict.fromkeys((*journal.copies, node))),
        leaving=_without(journal.leaving, node),
    )
    return Change(name, journal, version, after, f"journal add-copy {name} {node}")


def move(store: Store, name: str, source: str, target: str) -> Change:
    """Let ``target`` hold a copy, and ``source`` not any more once enough others are in sync.

    Raises as ``add_copy``, and ``UserError`` where ``source`` leads, or holds none.
    """
    journal, version = _require_open(store, name)
    _require_dropped(journal, name, source)
    if target in journal.copies:
        raise UserError(
            f"node {target} is to hold a copy already: to take that of {source} away, "
            f"`flumeng journal drop-copy {name} {source}`"
        )
    _require_holder(store, target)
    after = replace(
        journal,
        copies=(*journal.copies, target),
        leaving=tuple(dict.fromkeys((*journal.leaving, source))),
    )
    command = f"journal move {name} --from {source} --to {target}"
    return Change(name, journal, version, after, command)


def drop_copy(store: Store, name: str, node: str) -> Change:
    """Let a node hold no copy any more, at once. Raises as ``move``."""
    journal, version = require_replicated(store, name)
    _require_dropped(journal, name, node)
    after = replace(
        journal,
        copies=_without(journal.copies, node),
        leaving=_without(journal.leaving, node),
        in_sync=tuple(copy for copy in journal.in_sync if node_of(copy) != node),
    )
    return Change(name, journal, version, after, f"journal drop-copy {name} {node}")


def others_in_sync(store: Store, name: str, own: str) -> list[str]:
    """The live nodes of copies in sync beside ``own``; none when there is no such copy.

    Raises ``UserError`` for what is no replicated journal, ``ConflictError`` when there are such
    copies and none of their nodes is live.
    """
    journal, _ = require_replicated(store, name)
    nodes = [node_of(copy) for copy in journal.in_sync if copy != own]
    live = [node for node in nodes if _is_live(store, node)]
    if nodes and not live:
        raise ConflictError(
            f"copies in sync have what is damaged here, and none of their nodes is live "
            f"({', '.join(nodes)}): start one of them first"
        )
    return live


def require_replicated(store: ReadableStore, name: str) -> tuple[Journal, Version]:
    """Raises ``UserError`` with the nearest name when there is no such journal, or when it has no
    copies; ``ConflictError`` when nobody needs it any more, ``CorruptError`` when it cannot be
    read."""
    tree.require(store)
    known = store.children(paths.journals())
    (found,) = store.read_each([paths.journal(name)]) if name in known else (None,)
    if found is None:
        hint = nearest(name, known) if known else "there are none"
        raise UserError(f'there is no journal "{name}"; {hint}')
    if isinstance(found, Unreadable):
        raise found.error
    if not found.value.lineage:
        raise UserError(f"journal {name} has no copies: its flow has not durability replicated")
    if found.value.gone:
        raise ConflictError(f"journal {name} is collected to its end, and is being removed")
    return found.value, found.version


def replicas_of(store: Source, flow: str) -> Replicas | None:
    """How the current text of the flow wants journals to be kept; None when it does not say it."""
    (record,) = store.read_each([paths.flow(flow)])
    if not isinstance(record, Versioned):
        return None
    (text,) = store.read_each([paths.revision(flow, str(record.value.revision))])
    try:
        spec = parse_flow(text.value.effective) if isinstance(text, Versioned) else None
    except SpecError:
        return None
    return spec.replicas if spec is not None and spec.durability == "replicated" else None


def _require_open(store: ReadableStore, name: str) -> tuple[Journal, Version]:
    journal, version = require_replicated(store, name)
    if journal.closed:
        raise ConflictError(f"journal {name} is closed: it keeps its copies until it is collected")
    return journal, version


def _require_dropped(journal: Journal, name: str, node: str) -> None:
    if node == journal.primary:
        raise UserError(
            f"node {node} leads {name}: let another copy lead first, "
            f"`flumeng journal promote {name}`"
        )
    if node not in journal.copies:
        raise UserError(f"node {node} holds no copy of {name}: expected one of {_copies(journal)}")


def _require_holder(store: ReadableStore, node: str) -> None:
    record = require_node(store, node).value
    if COPY not in record.roles:
        raise UserError(f"node {node} has no role {COPY} (`flumeng node run --role {COPY}`)")
    if record.desired != "active":
        raise UserError(f"node {node} is {record.desired} (`flumeng node undrain {node}`)")
    _require_live(store, node)


def _require_live(store: ReadableStore, node: str) -> None:
    require_node(store, node)
    if not _is_live(store, node):
        raise ConflictError(f"node {node} is not live: start it first")


def _is_live(store: ReadableStore, node: str) -> bool:
    return store.read_each([paths.live_node(node)]) != [None]


def _could_lead(store: ReadableStore, node: str, journal: str) -> bool:
    """Whether the node is live, and does not say that it cannot."""
    (told,) = store.read_each([paths.status(node)])
    said = told.value.problems if isinstance(told, Versioned) else {}
    return _is_live(store, node) and str(paths.journal(journal)) not in said


def _without(names: tuple[str, ...], one: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != one)


def _in_sync(journal: Journal) -> str:
    return f"{_names(journal)} {'is' if len(journal.in_sync) == 1 else 'are'} in sync"


def _names(journal: Journal) -> str:
    return ", ".join(map(node_of, journal.in_sync))


def _copies(journal: Journal) -> str:
    return ", ".join(node for node in journal.copies if node != journal.primary) or "none"
