"""Lines in stream order, and overlong pauses between two lines of a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flumeng.agent.collector.lines.machine import Flags, Numbers


@dataclass(frozen=True)
class InStreams:
    """Lines sorted by stream. ``order``: their rows. In this order ``fresh`` marks the first line
    of a stream, ``pauses`` lines after a pause, and ``waiting`` last lines that more may follow.

    A pause is too long when, before the next line of its stream, a line of *any* stream was
    received more than its ``patience`` (microseconds) later. The clock may have been set back.
    """

    order: Numbers
    fresh: Flags
    pauses: Flags
    waiting: Flags

    @classmethod
    def of(cls, times: Numbers, streams: Numbers, patience: Numbers, *, flush: bool) -> InStreams:
        """Sort lines by stream and find the pauses. With ``flush`` no line is waiting."""
        order = np.argsort(streams, kind="stable")
        mine = streams[order]
        fresh = np.empty(len(order), np.bool_)
        fresh[:1] = True
        fresh[1:] = mine[1:] != mine[:-1]
        pauses = _pauses(times, order, patience) & ~fresh
        waiting = np.zeros(len(order), np.bool_)
        if not flush and len(order):
            ends = np.append(np.flatnonzero(fresh)[1:], len(order)) - 1
            waiting[ends] = ~_outlasted(times, order[ends], patience)
        return cls(order, fresh, pauses, waiting)

    def following(self, flags: Flags) -> Flags:
        """Return which lines follow a line with the flag, in their stream and without a pause."""
        follows = np.zeros(len(flags), np.bool_)
        follows[self.order[1:]] = flags[self.order[:-1]] & ~(self.fresh | self.pauses)[1:]
        return follows

    def only(self, kept: Flags) -> InStreams:
        """Return only the ``kept`` lines; each stream begins with its first kept line."""
        if kept.all():
            return self
        mine = kept[self.order]
        before = np.concatenate(([False], mine[:-1]))
        fresh = (self.fresh | ~before)[mine]
        return replace(
            self,
            order=self.order[mine],
            fresh=fresh,
            pauses=self.pauses[mine] & ~fresh,
            waiting=self.waiting[mine],
        )


def _pauses(times: Numbers, order: Numbers, patience: Numbers) -> Flags:
    pauses = np.zeros(len(order), np.bool_)
    if len(order) < 2:
        return pauses
    mine, most = times[order], (times + patience)[order]
    pauses[1:] = mine[1:] > most[:-1]
    newest = np.maximum.accumulate(times)
    perhaps = newest[order[1:]] > most[:-1]
    unsure = np.flatnonzero(perhaps & ~pauses[1:] & (order[1:] > order[:-1])) + 1
    if len(unsure):
        spans = np.column_stack((order[unsure - 1] + 1, order[unsure] + 1)).ravel()
        pauses[unsure] = np.maximum.reduceat(np.append(times, 0), spans)[::2] > most[unsure - 1]
    return pauses


def _outlasted(times: Numbers, rows: Numbers, patience: Numbers) -> Flags:
    """Return for each of ``rows`` whether a later line of the partition came after its timeout."""
    after = np.full(len(times) + 1, np.iinfo(np.int64).min // 2)
    after[:-1] = np.maximum.accumulate(times[::-1])[::-1]
    outlasted: Flags = after[rows + 1] > times[rows] + patience[rows]
    return outlasted
