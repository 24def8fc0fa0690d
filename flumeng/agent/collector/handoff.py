"""What is to be delivered at once, of all that was there when somebody asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Handoff:
    """Of one claim. Partitions that cannot be read keep it from being done."""

    def __init__(self) -> None:
        self._ends: dict[str, int | None] = {}
        """Partition -> what is to be delivered without waiting for more; None until it is seen."""

    @property
    def done(self) -> bool:
        """Whether all of it is in a batch, or there was none."""
        return not self._ends

    def begin(self, partitions: Collection[str]) -> None:
        """All that is safe in ``partitions`` when they are looked at next."""
        self._ends = dict.fromkeys(partitions)

    def look(self, safe: Mapping[str, int], delivered: Mapping[str, int]) -> bool:
        """Whether something of it can be read and is in no batch yet."""
        for name in self._ends.keys() & safe.keys():
            known = self._ends[name]
            end = safe[name] if known is None else min(known, safe[name])
            if end > delivered[name]:
                self._ends[name] = end
            else:
                del self._ends[name]
        return any(end is not None for end in self._ends.values())
