"""Which lane of the queue gets an object: the one with the least to be read. Pure.

What an object weighs is its bytes, and what it costs to open one. Objects go to lanes in the order
in which they were listed, so they are in that order within each lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace

from flumeng.inputs.objects.listed import Listed

OPENING_BYTES = 64 * 1024
"""So many bytes could be read while an object is opened."""


def weight(size: int) -> int:
    return size + OPENING_BYTES


def spread(listed: Iterable[Listed], waiting: Mapping[str, int]) -> list[str]:
    """The lane of each object. ``waiting``: lane -> the weight of what is not acked yet; of lanes
    with the same weight the first one comes first."""
    heap = [(weight, place, lane) for place, (lane, weight) in enumerate(waiting.items())]
    heapify(heap)
    lanes = []
    for one in listed:
        least, place, lane = heap[0]
        lanes.append(lane)
        heapreplace(heap, (least + weight(one.size), place, lane))
    return lanes
