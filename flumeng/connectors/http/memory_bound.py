"""How much memory many users of one thing may take together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class OverBoundError(Exception):
    """There is no more for now."""


class MemoryBound:
    """``most_bytes`` for all shares together. One that is alone may take more, so that what is
    larger than the bound is possible at all. For any thread."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self.lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator[Share]:
        """For one user, who has given all back when the block ends."""
        share = Share(self)
        try:
            yield share
        finally:
            share.give_back_to(0)


class Share:
    """What one user holds."""

    def __init__(self, bound: MemoryBound) -> None:
        self.held_bytes = 0
        self._bound = bound

    def take(self, nbytes: int) -> None:
        """Before so much is allocated. Raises OverBoundError, and has not taken it then."""
        bound = self._bound
        with bound.lock:
            held = bound.held_bytes + nbytes
            if held > bound.most_bytes and bound.held_bytes > self.held_bytes:
                raise OverBoundError(f"{held} of {bound.most_bytes} bytes")
            bound.held_bytes = held
            self.held_bytes += nbytes

    def give_back_to(self, nbytes: int) -> None:
        """No more than so much is still held."""
        with self._bound.lock:
            self._bound.held_bytes -= max(0, self.held_bytes - nbytes)
            self.held_bytes = min(self.held_bytes, nbytes)
