"""A network on which everything may be late or lost, as long as the world is rough."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.testkit.simulation.session import Fate

LATE_FATES = (Fate.UNANSWERED, Fate.UNANSWERED, Fate.LATE, Fate.LOST)

FRAGILE_LOSES = 0.125

WRITES_WAIT = 5.0
"""How much more often writes are slow than reads: their preconditions may be outdated when they
arrive."""


class Rough:
    """``meanwhile`` lets others act while a request is under way. The chances differ by seed."""

    def __init__(self, random: Random, meanwhile: Callable[[], None]) -> None:
        self.prompt = False
        self._random = random
        self._meanwhile = meanwhile
        self._lags = random.choice((0.0, 0.5, 0.95, 0.995))
        self._loses = random.choice((0.0, 0.02, 0.08))
        self._interrupts = random.choice((0.0, 0.01, 0.04))

    def calm_down(self) -> None:
        self.prompt = True
        self._lags = self._loses = self._interrupts = 0.0

    def before_call(self, *, writes: bool) -> None:
        chance = self._interrupts * (WRITES_WAIT if writes else 1.0)
        if chance and self._random.random() < chance:
            self._meanwhile()

    def applied(self, seen: int, newest: int) -> int:
        if self._lags and self._random.random() < self._lags:
            return self._random.randint(seen, newest) if self._random.random() < 0.3 else seen
        return newest

    def fate(self) -> Fate:
        if self._loses and self._random.random() < self._loses:
            return self._random.choice(LATE_FATES)
        return Fate.ANSWERED

    def cuts(self) -> bool:
        return self._random.random() < 0.5

    def arrives(self) -> bool:
        return self._random.random() < 0.5


class Fragile:
    """As another network while that is rough, but one of eight replies to a write is lost."""

    def __init__(self, network: Rough, random: Random) -> None:
        self._network = network
        self._random = random
        self.before_call = network.before_call
        self.applied = network.applied
        self.cuts = network.cuts
        self.arrives = network.arrives

    @property
    def prompt(self) -> bool:
        return self._network.prompt

    def fate(self) -> Fate:
        if not self.prompt and self._random.random() < FRAGILE_LOSES:
            return self._random.choice(LATE_FATES)
        return self._network.fate()


class Answering(Rough):
    """As rough, but every write is answered: for an operator, who would check by hand."""

    def fate(self) -> Fate:
        return Fate.ANSWERED
