"""The primary's side of replication in one term: sends events and decides when to acknowledge them.

An event is acknowledged when every in-sync replica has it on disk (I1). A late replica is removed
from the in-sync set first, by a confirmed change in ZooKeeper. A replica that has caught up joins
in the same way (I12). The checkpoint waits for it once it has nearly caught up, before that change
is requested. The outcome of a requested change is unknown until ZooKeeper reports it; until then
both memberships may be in force. At the first sign of a later term the primary stops: it
acknowledges nothing more (I6). The package lists the invariants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from flumeng.journal.replication.history import Log, Start
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.journal.replication.messages import (
    Began,
    Begin,
    Frames,
    Persisted,
    Refused,
    Reset,
    ToFollower,
    ToPrimary,
    Unmatched,
)

NEAR = 100_000


class Send(NamedTuple):
    """Send a message to the node of a replica; events of Frames are read from the primary's log."""

    node: str
    message: ToFollower


class Change(NamedTuple):
    """Write to ZooKeeper if the version is still ``version``; ``changed`` takes the result."""

    version: int
    membership: Membership


Action = Send | Change


class Peer(NamedTuple):
    """A replica on another node, in this term. ``replica`` (the id) and ``end`` (persisted events)
    are set once it has begun. ``sent``: the end of the events sent to it."""

    replica: str = ""
    end: int = 0
    sent: int = 0

    @property
    def begun(self) -> bool:
        return bool(self.replica)


@dataclass(frozen=True, slots=True)
class Primary:
    """The primary's state in one term. ``first``: the log at the term's beginning. ``asked``: a
    requested membership, outcome unknown. ``joining``: the id of the replica that joins next."""

    id: str
    term: int
    first: Log
    log: Log
    checkpoint: int
    acked: int
    membership: Membership
    version: int
    min_in_sync: int
    near: int
    peers: Mapping[str, Peer]
    joining: str = ""
    asked: Membership | None = None
    over: bool = False

    @property
    def counted(self) -> tuple[str, ...]:
        """The replicas for which the checkpoint waits: in sync, or perhaps so (I7, I12)."""
        asked = self.asked.in_sync if self.asked else ()
        joining = (self.joining,) if self.joining else ()
        return tuple(dict.fromkeys((*self.membership.in_sync, *asked, *joining)))

    @property
    def takes(self) -> bool:
        """Whether the primary accepts events (I15)."""
        return not self.over and len(self.membership.in_sync) >= self.min_in_sync

    @property
    def answered(self) -> int:
        """Senders are answered below this seq, while ``takes``; ``acked`` is of readers."""
        return self.checkpoint

    def check(self) -> None:
        assert self.log.floor <= self.checkpoint <= self.log.safe <= self.log.end
        assert self.acked <= self.checkpoint
        assert self.id in self.membership.in_sync or self.over
        assert self.first.end <= self.log.end


Step = tuple[Primary, list[Action]]


def started(
    me: str,
    log: Log,
    checkpoint: int,
    membership: Membership,
    version: int,
    *,
    min_in_sync: int = 1,
    near: int = NEAR,
) -> Step:
    """Start a primary in the membership's term, already on disk; all of ``log`` is synced."""
    assert membership.primary == me
    assert me in membership.in_sync
    peers = {node: Peer() for node in membership.nodes if node != node_of(me)}
    primary = Primary(
        id=me,
        term=membership.term,
        first=log,
        log=log,
        checkpoint=checkpoint,
        acked=log.floor,
        membership=membership,
        version=version,
        min_in_sync=min_in_sync,
        near=near,
        peers=peers,
    )
    primary = _advanced(primary)
    return primary, [_begin(primary, node) for node in peers]


def appended(primary: Primary, end: int) -> Step:
    """Handle an append: events up to ``end`` are in the local log, not synced."""
    log = primary.log.extended([Start(primary.term, primary.log.end)], end)
    primary = replace(primary, log=log)
    return _sent(primary, primary.peers)


def synced(primary: Primary, end: int) -> Step:
    """Handle a sync: the local log is on disk up to ``end``."""
    log = primary.log._replace(safe=max(primary.log.safe, min(end, primary.log.end)))
    return _moved(replace(primary, log=log))


def trimmed(primary: Primary, acked: int, floor: int) -> Step:
    """Handle a trim: readers have acked up to ``acked``; the log begins at ``floor``."""
    log = primary.log._replace(floor=floor)
    return replace(primary, acked=max(primary.acked, min(acked, primary.checkpoint)), log=log), []


def received(primary: Primary, node: str, message: ToPrimary) -> Step:
    if primary.over:
        return primary, []
    if isinstance(message, Refused):
        return (_ended(primary), []) if message.term > primary.term else (primary, [])
    peer = primary.peers.get(node)
    if message.term != primary.term or peer is None:
        return primary, []
    if isinstance(message, Unmatched):
        return primary, [_begin(primary, node)]
    if isinstance(message, Persisted):
        return _persisted(primary, node, peer, message)
    return _began(primary, node, message)


def resend(primary: Primary, node: str) -> Step:
    """Repeat the messages that the node's replica may have missed."""
    peer = primary.peers.get(node)
    if primary.over or peer is None:
        return primary, []
    if not peer.begun:
        return primary, [_begin(primary, node)]
    return _sent(_with(primary, node, peer._replace(sent=peer.end)), [node], even_none=True)


def send_checkpoint(primary: Primary, node: str) -> Step:
    """Send the checkpoint, the ack and unsent events to the node's replica."""
    return _sent(primary, [node], even_none=True)


def late(primary: Primary, node: str) -> Step:
    """Request the removal of a late node's replica from the in-sync set, unless too few would
    remain to acknowledge anything: it may still be promoted. A joining replica joins no more."""
    if node_of(primary.joining) == node and not primary.asked:
        return _moved(_with(replace(primary, joining=""), node, Peer()))
    gone = [replica for replica in primary.membership.in_sync if node_of(replica) == node]
    if primary.over or primary.asked or not gone or node == node_of(primary.id):
        return primary, []
    if len(primary.membership.in_sync) <= primary.min_in_sync:
        return primary, []
    # Its known state no longer counts: it must answer before it joins again.
    return _ask(_with(primary, node, Peer()), primary.membership.without(gone[0]))


def retry_change(primary: Primary) -> Step:
    """Repeat a change with an unknown outcome; at an outdated version it has no effect."""
    if primary.over or not primary.asked:
        return primary, []
    return primary, [Change(primary.version, primary.asked)]


def changed(primary: Primary, membership: Membership, version: int) -> Step:
    """Apply the membership in ZooKeeper, changed by this primary or another process. Another term
    or primary ends this one; versions older than the known one are ignored."""
    if version < primary.version or primary.over:
        return primary, []
    if (membership.term, membership.primary) != (primary.term, primary.id):
        return _ended(primary), []
    nodes = [node for node in membership.nodes if node != node_of(primary.id)]
    new = [node for node in nodes if node not in primary.peers]
    peers = {node: primary.peers.get(node, Peer()) for node in nodes}
    # A requested change may still be made while the record has the version of the request.
    asked = primary.asked if version == primary.version else None
    joining = primary.joining if asked or primary.joining not in membership.in_sync else ""
    primary = replace(
        primary, membership=membership, version=version, peers=peers, asked=asked, joining=joining
    )
    primary, actions = _moved(primary)
    return primary, [*[_begin(primary, node) for node in new], *actions]


def _begin(primary: Primary, node: str) -> Action:
    return Send(node, Begin(primary.membership.lineage, primary.term, primary.first))


def _began(primary: Primary, node: str, message: Began) -> Step:
    peer = primary.peers[node]
    end = max(peer.end, message.end) if peer.replica == message.replica else message.end
    peer = Peer(message.replica, end, end)
    primary, sent = _sent(_with(primary, node, peer), [node], even_none=True)
    primary, moved = _moved(primary)
    return primary, [*sent, *moved]


def _persisted(primary: Primary, node: str, peer: Peer, message: Persisted) -> Step:
    if peer.replica != message.replica:
        return primary, [_begin(primary, node)]
    peer = peer._replace(end=max(peer.end, message.end))
    if message.gap:
        peer = peer._replace(sent=peer.end)
    primary, sent = _sent(_with(primary, node, peer), [node] if message.gap else [])
    primary, moved = _moved(primary)
    return primary, [*sent, *moved]


def _moved(primary: Primary) -> Step:
    if primary.joining not in [peer.replica for peer in primary.peers.values()]:
        primary = replace(primary, joining="")
    primary = _advanced(primary)
    if primary.over or primary.asked:
        return primary, []
    membership = primary.membership
    for replica in membership.in_sync:
        peer = primary.peers.get(node_of(replica))
        lost = peer is None or (peer.begun and peer.replica != replica)
        if replica != primary.id and lost:  # it was removed from the replicas, or lost its disk
            return _ask(primary, membership.without(replica))
    for peer in primary.peers.values():
        joins = not primary.joining and peer.begun and peer.replica not in membership.in_sync
        if joins and primary.log.end - peer.end <= primary.near:
            primary = replace(primary, joining=peer.replica)
        # Events answered in earlier terms lie below the end at the begin of this term, but perhaps
        # not below the known checkpoint.
        caught_up = peer.end >= max(primary.checkpoint, primary.first.end)
        if peer.begun and peer.replica == primary.joining and caught_up:
            return _ask(primary, membership.joined(peer.replica))
    return primary, []


def _advanced(primary: Primary) -> Primary:
    """Advance the checkpoint to the lowest of all ``counted``; it stays if one is unknown (I7)."""
    end_of = {peer.replica: peer.end for peer in primary.peers.values() if peer.begun}
    end_of[primary.id] = primary.log.safe
    ends = [end_of.get(replica) for replica in primary.counted]
    least = min((end for end in ends if end is not None), default=0)
    if primary.over or None in ends or least <= primary.checkpoint:
        return primary
    return replace(primary, checkpoint=least)


def _sent(primary: Primary, nodes: Iterable[str], *, even_none: bool = False) -> Step:
    actions: list[Action] = []
    if primary.over:
        return primary, actions
    for node in nodes:
        peer = primary.peers[node]
        if not peer.begun or (peer.sent == primary.log.end and not even_none):
            continue
        if peer.sent < primary.log.floor:
            actions.append(Send(node, Reset(primary.term, primary.log.floor)))
            continue
        frames = Frames(
            primary.term,
            peer.sent,
            primary.log.end,
            primary.log.terms(peer.sent, primary.log.end),
            primary.checkpoint,
            primary.acked,
        )
        primary = _with(primary, node, peer._replace(sent=primary.log.end))
        actions.append(Send(node, frames))
    return primary, actions


def _ask(primary: Primary, membership: Membership) -> Step:
    return replace(primary, asked=membership), [Change(primary.version, membership)]


def _ended(primary: Primary) -> Primary:
    return replace(primary, over=True, asked=None)


def _with(primary: Primary, node: str, peer: Peer) -> Primary:
    return replace(primary, peers={**primary.peers, node: peer})
