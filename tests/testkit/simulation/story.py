"""The last steps of a world, to be printed when something went wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

KEEP_EVENTS = 40


class ViolationError(AssertionError):
    """A violated invariant: carries the seed and the story."""


class Story:
    """``step`` counts the steps of the world's scheduler."""

    def __init__(self, seed: int, now: Callable[[], float]) -> None:
        self.seed = seed
        self.step = 0
        self._now = now
        self._events: deque[tuple[int, float, str, str]] = deque(maxlen=KEEP_EVENTS)

    def tell(self, who: str, what: str) -> None:
        self._events.append((self.step, self._now(), who, what))

    def violation(self, what: str) -> ViolationError:
        lines = [f"{what}", f"seed {self.seed}, step {self.step}; what came before:"]
        lines += [f"  {step:4} {now:7.1f} s  {who}: {told}" for step, now, who, told in self]
        lines.append(f"again: FLUMENG_SIM_SEED={self.seed}")
        return ViolationError("\n".join(lines))

    def __iter__(self) -> Iterator[tuple[int, float, str, str]]:
        return iter(self._events)
