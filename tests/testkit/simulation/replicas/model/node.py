"""The steps of one process of the model: those of the protocol, and the disk under them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from flumeng.journal.replication import follower, primary
from flumeng.journal.replication.follower import Follower
from flumeng.journal.replication.membership import Membership
from flumeng.journal.replication.messages import (
    Began,
    Begin,
    Frames,
    Persisted,
    Refused,
    Reset,
    Unmatched,
)
from flumeng.journal.replication.primary import Peer, Primary
from tests.testkit.simulation.replicas.disk import Event, ReplicaDisk
from tests.testkit.simulation.replicas.host import Letter, Proposal


class Peers(dict[str, Peer]):
    """A primary's knowledge of other nodes, hashable."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class Node(NamedTuple):
    """A process and the events on its disk. ``speaker``: the node to which a replica reports its
    syncs."""

    role: Follower | Primary
    events: tuple[Event, ...]
    speaker: str = ""

    @property
    def shown(self) -> tuple[Event, ...]:
        """The events that it confirms and that readers can read."""
        return self.events[: self.role.checkpoint] if isinstance(self.role, Primary) else ()


class Done(NamedTuple):
    """The node's new state, and its letters and proposals."""

    node: Node
    letters: tuple[Letter, ...] = ()
    proposals: tuple[Proposal, ...] = ()


def led(name: str, events: tuple[Event, ...], step: primary.Step) -> Done:
    state, actions = step
    letters, proposals = list[Letter](), list[Proposal]()
    for action in actions:
        if isinstance(action, primary.Change):
            proposals.append(Proposal(name, action.version, action.membership))
            continue
        told = action.message
        with_it = events[told.start : told.end] if isinstance(told, Frames) else ()
        letters.append(Letter(name, action.node, told, with_it))
    node = Node(replace(state, peers=Peers(state.peers)), events)
    return Done(found(node) if state.over else node, tuple(letters), tuple(proposals))


def followed(name: str, node: Node, step: follower.Step, letter: Letter | None = None) -> Done:
    replica, actions = step
    events, letters = node.events, list[Letter]()
    target = letter.source if letter else node.speaker
    for action in actions:
        if isinstance(action, follower.Cut):
            events = events[: action.end]
        elif isinstance(action, follower.Restart):
            events = ()
        elif isinstance(action, follower.Write):
            assert letter is not None
            assert isinstance(letter.message, Frames)
            events += letter.events[action.start - letter.message.start :]
        elif isinstance(action, follower.Reply):
            letters.append(Letter(name, target, action.message))
    refused = letter is not None and letter.message.term < replica.term
    return Done(Node(replica, events, node.speaker if refused else target), tuple(letters))


def found(node: Node, end: int | None = None, checkpoint: int | None = None) -> Node:
    """The node after a restart with the events from ``end`` on torn off."""
    role, events = node.role, node.events[:end]
    known = role.checkpoint if checkpoint is None else checkpoint
    disk = ReplicaDisk(role.id, "a", 0, role.term, known, len(events), list(events))
    return Node(disk.duplicate(), events)


def told(name: str, node: Node, letter: Letter) -> Done:
    message = letter.message
    if isinstance(message, Begin | Frames | Reset):
        if isinstance(node.role, Primary):
            if message.term <= node.role.term:
                return Done(node, (Letter(name, letter.source, Refused(node.role.term)),))
            node = found(node)
        assert isinstance(node.role, Follower)
        assert not isinstance(message, Reset), "nothing is trimmed here"
        if isinstance(message, Begin):
            return followed(name, node, follower.begin(node.role, message), letter)
        return followed(name, node, follower.take(node.role, message), letter)
    if isinstance(node.role, Primary):
        return led(name, node.events, primary.received(node.role, letter.source, message))
    return Done(node)


def looked(name: str, node: Node, version: int, membership: Membership) -> Done:
    """Read ZooKeeper's record."""
    role = node.role
    if isinstance(role, Primary):
        return led(name, node.events, primary.changed(role, membership, version))
    if membership.primary != role.id or role.term > membership.term:
        return Done(node)
    if role.term == membership.term:
        return Done(node, proposals=(Proposal(name, version, membership.restarted()),))
    log = role.log._replace(safe=role.log.end)
    step = primary.started(role.id, log, role.checkpoint, membership, version)
    return led(name, node.events, step)


def synced(name: str, node: Node) -> Done:
    role = node.role
    if role.log.safe == role.log.end:
        return Done(node)
    if isinstance(role, Primary):
        return led(name, node.events, primary.synced(role, role.log.end))
    return followed(name, node, follower.synced(role, role.log.end))


def appended(name: str, node: Node, value: int) -> Done:
    role = node.role
    assert isinstance(role, Primary)
    events = (*node.events, Event(role.term, value))
    return led(name, events, primary.appended(role, len(events)))


def is_useless(letter: Letter, target: Node, crashes: int, promotions: int) -> bool:
    """Whether the letter has no effect that other letters do not have, with so many crashes and
    promotions to come."""
    message, role = letter.message, target.role
    if isinstance(message, Begin | Frames):
        if message.term < role.term:  # that its sender is over ZooKeeper tells as well
            return told(letter.target, target, letter).node == target
        if message.term > role.term:
            return False
        if not isinstance(role, Follower) or not role.matched:
            return isinstance(role, Primary)
        if isinstance(message, Begin):
            return False
        had = role.log.safe if crashes else role.log.end
        known = role.checkpoint >= message.checkpoint or not (crashes or promotions)
        return had >= message.end and known
    if not isinstance(role, Primary) or isinstance(message, Unmatched | Refused):
        return True  # the requested events have been sent, and stay under way
    assert isinstance(message, Persisted | Began)
    peer = role.peers[letter.source]
    known = message.replica == peer.replica and message.end <= peer.end
    return message.term != role.term or known


def awaits(node: Node, replica: str) -> bool:
    """Whether it is a primary without any knowledge of another's replica."""
    return isinstance(node.role, Primary) and not node.role.peers[replica].begun
