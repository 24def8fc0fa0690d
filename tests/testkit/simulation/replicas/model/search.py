"""Every order of the possible steps of three replicas of a journal, for a few events: the
protocol's own steps, searched breadth first.

Three replicas are in sync when it begins. A few events are appended; one process crashes and is
started again, with any part of its unsynced writes; the master promotes another replica while
the primary believes that it is one; one replica is found late. Each may happen at any moment, or
never.

- A message stays on its way: it may be delivered at any later moment, in any order, more than once,
  or never. It is forgotten when its target has no more use for it. So nothing has to be sent again.
- A sync of the writes so far ends at any moment. A request to ZooKeeper is carried out at any
  moment or not at all, and answered at any moment.
- A replica's checkpoint survives a crash, or does not.

Nothing is trimmed and no disk is lost; ``world`` has that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile
from typing import Generic, NamedTuple, TypeVar

from flumeng.journal.replication import primary
from flumeng.journal.replication.follower import Follower
from flumeng.journal.replication.history import Log
from flumeng.journal.replication.membership import Membership
from flumeng.journal.replication.messages import Began, Begin
from flumeng.journal.replication.primary import Primary
from tests.testkit.simulation.replicas.disk import Event
from tests.testkit.simulation.replicas.host import Letter, Proposal
from tests.testkit.simulation.replicas.model.node import (
    Done,
    Node,
    appended,
    awaits,
    found,
    is_useless,
    led,
    looked,
    synced,
    told,
)

NAMES = ("n0", "n1", "n2")
Thing = TypeVar("Thing")


class View(NamedTuple):
    """The record in ZooKeeper."""

    version: int
    membership: Membership


class Left(NamedTuple):
    """The faults that may still happen."""

    events: int
    crashes: int = 1
    promotions: int = 1
    late: int = 1


class State(NamedTuple):
    """A state as numbers of ``Ids``; letters and proposals are sets of bits. ``shown``: the events
    that were confirmed and readable."""

    nodes: tuple[int, ...]
    view: int
    letters: int
    proposals: int
    shown: int
    left: Left


class Move(NamedTuple):
    """One of ``trouble`` need not happen."""

    told: tuple[object, ...]
    trouble: bool
    state: State


class Ids(Generic[Thing]):
    """Numbers for things, so that facts about one can be looked up."""

    def __init__(self) -> None:
        self.things: list[Thing] = []
        self._ids: dict[Thing, int] = {}

    def of(self, thing: Thing) -> int:
        if thing not in self._ids:
            self._ids[thing] = len(self.things)
            self.things.append(thing)
        return self._ids[thing]

    def bits(self, things: tuple[Thing, ...]) -> int:
        return sum(1 << number for number in {self.of(thing) for thing in things})


def numbers(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


class Search:
    """``run`` visits every reachable state. The error of a wrong state has notes of the steps that
    led to it."""

    def __init__(self, left: Left) -> None:
        self.nodes, self.views = Ids[Node](), Ids[View]()
        self.letters, self.proposals = Ids[Letter](), Ids[Proposal]()
        self.shown = Ids[tuple[Event, ...]]()
        self.rests = 0
        self._done: dict[tuple[object, ...], tuple[int, int, int]] = {}
        self._useless: dict[tuple[int, int, int, int], bool] = {}
        self._pairs: set[tuple[int, int]] = set()
        self._first = self._beginning(left)
        self._from: dict[State, State | None] = {self._first: None}

    def run(self) -> int:
        """How many states there are."""
        reached = [self._first]
        for state in reached:
            try:
                moves = list(self._moves(state))
                if all(move.trouble for move in moves):
                    self.rests += 1
                    check_rest([self.nodes.things[n] for n in state.nodes], self._membership(state))
                for move in moves:
                    if move.state not in self._from:
                        self._from[move.state] = state
                        self._check(move.state)
                        reached.append(move.state)
            except Exception as error:
                error.add_note("\n".join(self._story(state)))
                raise
        return len(reached)

    def _beginning(self, left: Left) -> State:
        """The primary n0 has begun its term, and all are in sync."""
        ids = tuple(f"{name}/0" for name in NAMES)
        membership = Membership("a", 1, ids[0], ids, NAMES)
        state, _ = primary.started(ids[0], Log(), 0, membership, 0)
        for name, replica in zip(NAMES[1:], ids[1:], strict=True):
            state, _ = primary.received(state, name, Began(1, replica, 0))
        first = led(NAMES[0], (), (state, [])).node
        others = [
            Node(Follower(replica, "a", Log(), 1, 0, matched=True), (), NAMES[0])
            for replica in ids[1:]
        ]
        nodes = tuple(self.nodes.of(node) for node in (first, *others))
        begin = Begin("a", 1, Log())
        letters = self.letters.bits(tuple(Letter(NAMES[0], name, begin) for name in NAMES[1:]))
        view = self.views.of(View(0, membership))
        return State(nodes, view, letters, 0, self.shown.of(()), left)

    def _membership(self, state: State) -> Membership:
        return self.views.things[state.view].membership

    def _moves(self, state: State) -> Iterator[Move]:
        for move in (*self._by_itself(state), *self._troubles(state)):
            if move.state != state:
                yield move

    def _by_itself(self, state: State) -> Iterator[Move]:
        view = self.views.things[state.view]
        for number in numbers(state.letters):
            letter = self.letters.things[number]
            at = NAMES.index(letter.target)
            move = self._move(state, at, ("gets", letter), number, told, letter)
            source = self.nodes.things[state.nodes[NAMES.index(letter.source)]]
            begins = isinstance(letter.message, Begin) and awaits(source, letter.target)
            if begins or move.state.nodes != state.nodes:  # else all that came of it was sent
                yield move
        for number in numbers(state.proposals):
            proposal = self.proposals.things[number]
            granted = self.views.of(View(view.version + 1, proposal.membership))
            yield Move(
                ("ZooKeeper grants", proposal), False, state._replace(view=granted, proposals=0)
            )
        for at in range(len(NAMES)):
            yield self._move(state, at, ("reads", view), state.view, looked, *view)
            yield self._move(state, at, ("syncs",), None, synced)

    def _troubles(self, state: State) -> Iterator[Move]:
        left, view = state.left, self.views.things[state.view]
        for at in range(len(NAMES)):
            node = self.nodes.things[state.nodes[at]]
            if left.events and isinstance(node.role, Primary):
                less = state._replace(left=left._replace(events=left.events - 1))
                yield self._move(
                    less, at, ("appends",), left.events, appended, left.events, trouble=True
                )
            if left.late and isinstance(node.role, Primary):
                less = state._replace(left=left._replace(late=left.late - 1))
                for other in NAMES:
                    yield self._move(
                        less, at, ("misses", other), other, misses, other, trouble=True
                    )
            if left.crashes:
                less = state._replace(left=left._replace(crashes=left.crashes - 1))
                for end in range(node.role.log.safe, node.role.log.end + 1):
                    for known in {0, node.role.checkpoint}:
                        why = ("crashes; has, knows", end, known)
                        yield self._move(
                            less, at, why, (end, known), crashes, end, known, trouble=True
                        )
        if left.promotions:
            for replica in view.membership.in_sync:
                if replica != view.membership.primary:
                    promoted = View(view.version + 1, view.membership.promoted(replica))
                    less = state._replace(left=left._replace(promotions=left.promotions - 1))
                    less = less._replace(view=self.views.of(promoted), proposals=0)
                    yield Move(("promoted", replica), True, less)

    def _move(
        self,
        state: State,
        at: int,
        why: tuple[object, ...],
        by: object,
        deed: Callable[..., Done],
        *what: object,
        trouble: bool = False,
    ) -> Move:
        """The node's action, whose outcome depends only on ``by``."""
        number, name = state.nodes[at], NAMES[at]
        key = (deed, at, number, by, state.left.crashes)
        if key not in self._done:
            done = deed(name, self.nodes.things[number], *what)
            if not state.left.crashes and isinstance(done.node.role, Follower):
                then = synced(name, done.node)  # when it ends matters to a crash only
                done = Done(then.node, (*done.letters, *then.letters), done.proposals)
            check_node(done.node)
            node = self.nodes.of(done.node)
            self._done[key] = (
                node,
                self.letters.bits(done.letters),
                self.proposals.bits(done.proposals),
            )
        node, letters, proposals = self._done[key]
        news = letters & ~state.letters or proposals & ~state.proposals
        if node == number and not news and not trouble:
            return Move((name, *why), trouble, state)
        nodes = (*state.nodes[:at], node, *state.nodes[at + 1 :])
        version = self.views.things[state.view].version
        proposals |= state.proposals
        for proposal in numbers(proposals):
            if self.proposals.things[proposal].version != version:  # it will never be granted
                proposals ^= 1 << proposal
        letters |= state.letters
        for letter in numbers(letters):
            if self._is_useless(letter, nodes, state.left):
                letters ^= 1 << letter
        shown = state.shown if node == number else self._shown(state.shown, nodes)
        state = State(nodes, state.view, letters, proposals, shown, state.left)
        return Move((name, *why), trouble, state)

    def _is_useless(self, number: int, nodes: tuple[int, ...], left: Left) -> bool:
        letter = self.letters.things[number]
        target = nodes[NAMES.index(letter.target)]
        key = (number, target, left.crashes, left.promotions)
        known = self._useless.get(key)
        if known is None:
            known = is_useless(letter, self.nodes.things[target], left.crashes, left.promotions)
            self._useless[key] = known
        return known

    def _shown(self, before: int, nodes: tuple[int, ...]) -> int:
        longest = self.shown.things[before]
        for number in nodes:
            shown = self.nodes.things[number].shown
            both = min(len(longest), len(shown))
            assert longest[:both] == shown[:both], f"{longest} was shown, and now {shown}"
            longest = max(longest, shown, key=len)
        return self.shown.of(longest)

    def _check(self, state: State) -> None:
        one, two, three = state.nodes
        for pair in ((one, two), (one, three), (two, three)):
            if pair not in self._pairs:
                check_pair(*[self.nodes.things[number] for number in pair])
                self._pairs.add(pair)
        shown = self.shown.things[state.shown]
        in_sync = self._membership(state).in_sync
        for number in state.nodes:
            node = self.nodes.things[number]
            has = node.events[: node.role.log.safe][: len(shown)]
            assert node.role.id not in in_sync or has == shown, f"{node} lacks some of {shown}"
            assert node.role.checkpoint <= len(shown), f"{node} believes in more than {shown}"

    def _story(self, state: State) -> list[str]:
        """The steps that led to this state."""
        path: list[State] = []
        at: State | None = state
        while at:
            path.insert(0, at)
            at = self._from[at]
        return [
            " ".join(map(str, next(move.told for move in self._moves(one) if move.state == other)))
            for one, other in pairwise(path)
        ]


def misses(name: str, node: Node, other: str) -> Done:
    """The other node was silent for too long."""
    assert isinstance(node.role, Primary)
    return led(name, node.events, primary.late(node.role, other))


def crashes(_: str, node: Node, end: int, known: int) -> Done:
    return Done(found(node, end, known))


def check_node(node: Node) -> None:
    node.role.check()
    log = node.role.log
    history = found(node).role.log.history
    assert (log.end, log.history) == (len(node.events), history), f"{node} does not know its log"


def check_pair(one: Node, other: Node) -> None:
    """Two logs with an event of one term at one seq are the same up to there; a term has one
    primary."""
    pairs = list(zip(one.events, other.events, strict=False))
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    again = [pair for pair in pairs[same:] if pair[0].term == pair[1].term]
    assert not again, f"logs differ and then have one term: {one.events}, {other.events}"
    roles = one.role, other.role
    both = all(isinstance(role, Primary) for role in roles)
    assert not both or roles[0].term != roles[1].term, f"term {roles[0].term} has two primaries"


def check_rest(nodes: list[Node], membership: Membership) -> None:
    """Nothing more happens by itself: all replicas are in sync and the same, and all is
    answered."""
    leader = next(node for node in nodes if node.role.id == membership.primary)
    assert isinstance(leader.role, Primary), "no primary comes"
    assert set(membership.in_sync) == {node.role.id for node in nodes}, "a replica is left out"
    assert {node.events for node in nodes} == {leader.events}, "replicas are not the same"
    assert leader.shown == leader.events, "events are not answered"
