"""A host: the process that holds a replica, or is the primary, and follows the protocol."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from flumeng.journal.replication import follower, primary
from flumeng.journal.replication.follower import Follower
from flumeng.journal.replication.membership import Membership
from flumeng.journal.replication.messages import (
    Begin,
    Frames,
    Refused,
    Reset,
    ToFollower,
    ToPrimary,
)
from flumeng.journal.replication.primary import Primary
from tests.testkit.simulation.replicas.disk import Event, ReplicaDisk


class Letter(NamedTuple):
    """A message on its way; ``events`` are those that Frames tell of."""

    source: str
    target: str
    message: ToFollower | ToPrimary
    events: tuple[Event, ...] = ()


class Proposal(NamedTuple):
    """A change that ZooKeeper is asked for."""

    host: str
    version: int
    membership: Membership


class CrashedError(Exception):
    """The process has died between two deeds."""


class Host:
    """``role`` is None while no process runs. Its letters go to ``post``, its proposals to
    ``proposal``; a sync takes time, see ``sync``.

    ``crash_share`` is the share of a replica's actions before which it crashes; ``remember_share``
    the chance that the global checkpoint is stored on its disk. ``near``: see Primary.
    """

    crash_share = 0.0
    remember_share = 0.3
    near = 2

    def __init__(
        self,
        name: str,
        rng: random.Random,
        post: Callable[[Letter], None],
        proposal: Callable[[Proposal], None],
        min_in_sync: int,
    ) -> None:
        self.name, self.disk = name, ReplicaDisk(f"{name}/0", "a", 0)
        self.role: Follower | Primary | None = None
        self.paused = False
        self.session = True
        self.version = -1
        self.membership: Membership | None = None
        self.waiting: dict[int, Event] = {}
        """Events of clients without an answer, by seq."""
        self.deeds: Counter[tuple[type, type]] = Counter()
        """Its actions as a replica: by message and action."""
        self.disks_lost = 0
        self._rng, self._post, self._proposal = rng, post, proposal
        self.min_in_sync = min_in_sync
        self._speaker = ""

    @property
    def runs(self) -> bool:
        return self.role is not None and not self.paused

    def start(self) -> None:
        self.role, self.session = self.disk.duplicate(), True
        self.version, self.membership = -1, None

    def crash(self) -> None:
        self.role, self.paused = None, False
        self.disk.crash(self._rng)
        self.waiting.clear()

    def lose_disk(self) -> None:
        """Restart with an empty disk."""
        self.disks_lost += 1
        self.crash()
        self.disk = ReplicaDisk(f"{self.name}/{self.disks_lost}", "", 0)

    def look(self, membership: Membership, version: int) -> None:
        """Read ZooKeeper's record, perhaps an old version."""
        role = self.role
        latest = version >= self.version
        if latest:
            self.version, self.membership = version, membership
        if isinstance(role, Primary):
            self._do_primary(*primary.changed(role, membership, version))
        elif latest and isinstance(role, Follower) and membership.primary == role.id:
            if role.term < membership.term:
                self._become_primary(role, membership, version)
            elif role.term == membership.term:
                self._proposal(Proposal(self.name, version, membership.restarted()))

    def _become_primary(self, replica: Follower, membership: Membership, version: int) -> None:
        self.disk.safe = self.disk.end
        self.disk.term = membership.term
        log = replica.log._replace(safe=replica.log.end)
        self._do_primary(
            *primary.started(
                replica.id,
                log,
                replica.checkpoint,
                membership,
                version,
                min_in_sync=self.min_in_sync,
                near=self.near,
            )
        )

    def append(self, value: int) -> None:
        role = self.role
        assert isinstance(role, Primary)
        event = Event(role.term, value)
        self.waiting[self.disk.end] = event
        self.disk.events.append(event)
        self._do_primary(*primary.appended(role, self.disk.end))

    def sync(self) -> None:
        """Finish a sync that began earlier: perhaps it covers only a part of the present events."""
        end = self._rng.randint(self.disk.safe, self.disk.end)
        self.disk.safe = end
        if isinstance(self.role, Primary):
            self._do_primary(*primary.synced(self.role, end))
        elif isinstance(self.role, Follower):
            self._do_replica(*follower.synced(self.role, end), self._speaker)
        self._remember()

    def sync_all(self) -> None:
        """Sync all written events."""
        self.disk.safe = self.disk.end
        self.sync()

    def waiting_below(self, seq: int) -> bool:
        """Whether an event below ``seq`` has no answer yet."""
        return any(waiting < seq for waiting in self.waiting)

    def trim(self, acked: int) -> None:
        role = self.role
        if isinstance(role, Primary) and not role.over:
            acked = min(acked, role.checkpoint)
            self.disk.trim(self._rng.randint(self.disk.floor, max(self.disk.floor, acked)))
            self._do_primary(*primary.trimmed(role, acked, self.disk.floor))

    def again(self) -> None:
        if isinstance(self.role, Primary):
            self._do_primary(*primary.retry_change(self.role))

    def tell(self, node: str) -> None:
        if isinstance(self.role, Primary):
            self._do_primary(*primary.resend(self.role, node))

    def late(self, node: str) -> None:
        if isinstance(self.role, Primary):
            self._do_primary(*primary.late(self.role, node))

    def take(self, letter: Letter) -> None:
        message, role = letter.message, self.role
        if isinstance(message, Begin | Frames | Reset):
            if isinstance(role, Primary):
                if message.term <= role.term:
                    refusal = Refused(role.term)
                    self._post(Letter(self.name, letter.source, refusal))
                    return
                self._step_down()
                role = self.role
            assert isinstance(role, Follower)
            if isinstance(message, Begin):
                step = follower.begin(role, message)
            elif isinstance(message, Frames):
                step = follower.take(role, message)
            else:
                step = follower.reset(role, message)
            self._speaker = letter.source
            self._do_replica(*step, letter.source, message, letter.events)
        elif isinstance(role, Primary):
            self._do_primary(*primary.received(role, letter.source, message))

    def _step_down(self) -> None:
        self.waiting.clear()
        self.disk.safe = self.disk.end
        self.role = self.disk.duplicate()

    def _do_primary(self, state: Primary, actions: list[primary.Action]) -> None:
        state.check()
        self.role = state
        for action in actions:
            if isinstance(action, primary.Change):
                self._proposal(Proposal(self.name, action.version, action.membership))
                continue
            events: tuple[Event, ...] = ()
            if isinstance(action.message, Frames):
                events = tuple(self.disk.read(action.message.start, action.message.end))
            self._post(Letter(self.name, action.node, action.message, events))
        if state.over:
            self._step_down()

    def _do_replica(
        self,
        state: Follower,
        actions: list[follower.Action],
        source: str,
        message: ToFollower | None = None,
        events: tuple[Event, ...] = (),
    ) -> None:
        self.role = state
        if isinstance(message, Begin):
            self.disk.safe = self.disk.end
        for action in actions:
            if self._rng.random() < self.crash_share:
                raise CrashedError
            self.deeds[type(message), type(action)] += 1
            if isinstance(action, follower.Fence):
                self.disk.term = action.term
            elif isinstance(action, follower.Cut):
                self.disk.cut(action.end)
            elif isinstance(action, follower.Restart):
                self.disk.restart(action.floor, action.lineage)
            elif isinstance(action, follower.Write):
                assert isinstance(message, Frames)
                assert action.start == self.disk.end
                self.disk.events += events[action.start - message.start :]
            elif isinstance(action, follower.Keep):
                self.disk.trim(self._rng.choice([0, action.acked]))
                self.role = state = follower.trimmed(state, self.disk.floor)
            else:
                self._post(Letter(self.name, source, action.message))
        state.check()
        self._remember()

    def _remember(self) -> None:
        if self.role is not None and self._rng.random() < self.remember_share:
            self.disk.checkpoint = max(self.disk.checkpoint, self.role.checkpoint)
