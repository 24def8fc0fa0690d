"""Removes stale znodes from shared folders: live znodes that do not prove their node
(``flumeng.platform.security.sessions``), and records of journals that no longer exist."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from flumeng.control.commands.membership import members
from flumeng.control.master.repeated_messages import RepeatedMessages
from flumeng.control.snapshot import missed_journals
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import (
    ANY,
    Path,
    ReadableStore,
    Remove,
    Store,
    Unreadable,
    Version,
    Versioned,
    Write,
)
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.security import process
from flumeng.platform.security.credentials import keystore_of
from zkschema import paths
from zkschema.access import Secured
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Journal, LiveNode, Schema

log = logging.getLogger(__name__)

AT_ONCE = 100


@dataclass(frozen=True)
class Trust:
    """The accepted identities: ``nodes`` of ``cluster``, with certificates of ``ca``."""

    cluster: str
    nodes: frozenset[str]
    ca: bytes


class LiveProofs:
    """Verifies live znodes; an open cluster accepts all. ``unproven``: failed ones to remove. One
    of a newer format fails but stays: masters of that version can verify it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._keystore = keystore_of("master")
        self._messages = RepeatedMessages(clock)
        self._trust: Trust | None = None
        self._learned: Schema | None = None
        self._nodes: frozenset[str] = frozenset()
        self.unproven: dict[Path, Version] = {}

    def learn(self, store: ReadableStore, schema: Schema) -> bool:
        """Update the accepted identities; return whether they changed. Raises UnavailableError."""
        before, secured = self._trust, Secured.of(schema)
        if secured is None or self._keystore is None:
            self._trust = None
        else:
            if self._learned != schema:
                self._nodes = frozenset(members(store, schema))
                self._learned = schema
            try:
                ca = process.loaded.of(self._keystore).ca
                self._trust = Trust(secured.cluster, self._nodes, ca)
            except UserError as error:
                log.debug("cannot read the certificate authorities, trying again: %s", error)
        if self._trust != before:
            self.unproven = {}
        return self._trust != before

    def is_live(self, path: Path, znode: Versioned[LiveNode] | Unreadable) -> bool:
        self.unproven.pop(path, None)
        why = self._why_unproven(path.name, znode)
        if why:
            newer = isinstance(znode, Unreadable) and znode.newer
            if not newer:
                self.unproven[path] = znode.version
            if self._messages.is_new(path.name, why):
                fate = "does not count as live" if newer else "is removed"
                log.warning("znode %s does not prove its node, and %s: %s", path, fate, why)
        return not why

    def _why_unproven(self, node: str, znode: Versioned[LiveNode] | Unreadable) -> str:
        if self._trust is None:
            return ""
        if isinstance(znode, Unreadable):
            return znode.why
        if f"node:{node}" not in self._trust.nodes:
            return "no node of that name was admitted to the cluster"
        from flumeng.platform.security import sessions  # noqa: PLC0415  needless in an open cluster

        return sessions.why_unproven(
            znode.value.certificates,
            znode.value.signature,
            cluster=self._trust.cluster,
            node=node,
            session=znode.session,
            ca=self._trust.ca,
            at=znode.written,
        )


def remove_unproven(store: Store, proofs: LiveProofs) -> Iterator[str]:
    """Remove some unproven live znodes; yield a line for each. Raises UnavailableError."""
    some = list(islice(proofs.unproven, AT_ONCE))
    removals = [[Remove(path, proofs.unproven.pop(path))] for path in some]
    for path, refused in zip(some, store.commit_each(removals), strict=True):
        if refused is None:
            yield f"removed {path}, which does not prove its node"
        else:
            yield f"cannot remove live znode {path}: {refused}"


def _kept(snapshot: Snapshot, journal: Journal) -> bool:
    """Whether the record must stay: the node that began the journal has yet to learn its end."""
    flow = snapshot.flows.get(journal.flow)
    awaited = flow is not None and flow.record.state != "deleted" and journal.node in snapshot.nodes
    return awaited and bool(journal.lineage) and journal.node != journal.primary


def remove_gone(store: Store, snapshot: Snapshot) -> Iterator[str]:
    """Remove gone journals and their ``main`` acks; yield log lines. Raises UnavailableError."""
    gone = [name for name, j in snapshot.journals.items() if j.gone and not _kept(snapshot, j)]
    gone = gone[:AT_ONCE]
    if not gone:
        return
    records = store.read_each([paths.journal(name) for name in gone])
    acks = [paths.ack(snapshot.journals[name].flow, CURSOR_MAIN, name) for name in gone]
    removals: dict[str, list[Write]] = {}
    for name, record, ack, acked in zip(gone, records, acks, store.read_each(acks), strict=True):
        if isinstance(record, Versioned) and record.value.gone:
            removed = Remove(paths.journal(name), record.version)
            missed = missed_journals.counted(store, name, record)
            removals[name] = [removed, *([Remove(ack, ANY)] if acked else [])]
            removals[name] += [missed] if missed else []
    for name, refused in zip(removals, store.commit_each([*removals.values()]), strict=True):
        if refused is None:
            yield f"removed the registration of journal {name}, which is gone"
        elif not isinstance(refused, ConflictError):
            yield f"cannot remove the registration of journal {name}: {refused}"
