"""Which objects have not changed for so long that they may be read. Pure.

An object is settled when it is old enough by the store's and this host's clocks. A store whose
clock is behind makes objects look older: then only changes between two looks wait. One whose clock
is ahead makes them look younger: they settle when seen unchanged for that long by a monotonic
clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flumeng.connectors.objects.pages import Listed


@dataclass
class _Waiting:
    listed: Listed
    since: float
    looked: int


class Settling:
    def __init__(self, settle_seconds: float) -> None:
        self._seconds = settle_seconds
        self._waiting: dict[str, _Waiting] = {}
        """Unsettled objects by place. Those taken since go with the next ``passed``."""
        self._looks = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def is_settled(self, listed: Listed, now_us: int, monotonic: float) -> bool:
        """Called once for each new object of a listing. ``monotonic``: seconds."""
        old = now_us - listed.modified_us >= self._seconds * 1_000_000
        waiting = self._waiting.get(listed.place)
        if not self._seconds or (old and waiting is None):
            return True
        if waiting is None or waiting.listed != listed:
            self._waiting[listed.place] = _Waiting(listed, monotonic, self._looks)
            return False
        waiting.looked = self._looks
        return old or monotonic - waiting.since >= self._seconds

    def settled(
        self, page: Iterable[Listed], now_us: int, monotonic: float, *, in_order: bool = False
    ) -> list[Listed]:
        """The settled ones; with ``in_order`` only those before the first that is not."""
        found = []
        held = False
        for one in page:
            if not self.is_settled(one, now_us, monotonic):
                held = in_order
            elif not held:
                found.append(one)
        return found

    def passed(self) -> None:
        """A listing has ended: what it did not ask for is gone."""
        self._waiting = {
            place: waiting
            for place, waiting in self._waiting.items()
            if waiting.looked == self._looks
        }
        self._looks += 1
