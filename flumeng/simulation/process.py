"""What runs by itself in a world: one step at a time, when the world says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flumeng.simulation.session import Session

if TYPE_CHECKING:
    from flumeng.simulation.world import World


class Process:
    """``due``: when it wants to run next; ``paused_until``: it gets no processor before that.

    ``busy`` while one of its steps is under way: a step may be interrupted, so that others act in
    between, but it does not begin anew. ``session`` is its session in ZooKeeper, if it has one.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.due = world.now
        self.paused_until = 0.0
        self.busy = False
        self.session: Session | None = None

    @property
    def ready(self) -> bool:
        return self.due <= self.world.now

    @property
    def may_run(self) -> bool:
        return not self.busy and self.paused_until <= self.world.now

    def step(self) -> None:
        """Do the next thing, and say in ``due`` when there is another."""
        raise NotImplementedError

    def wake(self) -> None:
        """The connection is back, or there may be something new."""
        self.due = min(self.due, self.world.now)

    def hear(self) -> None:
        """Its server goes on applying the log, and its watches tell."""
        if self.session is not None:
            newest = self.session.ensemble.zxid
            self.session.see(self.world.random.randint(self.session.zxid, newest))

    def end(self) -> None:
        """It is gone, killed or not; called once."""
        if self.session is not None:
            self.session.vanish()

    def say(self, what: str) -> None:
        self.world.story.tell(self.name, what)
