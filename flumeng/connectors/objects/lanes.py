"""Which lane of the queue gets an object: the one with the least to be read. Pure.

Objects weigh what they weigh when they are read (see ``contents``), and go to lanes in the order in
which they were listed, so they are in that order within each lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heapreplace

from flumeng.connectors.objects.contents import weight
from flumeng.connectors.objects.formats import cuttable
from flumeng.connectors.objects.listed import Listed
from flumeng.connectors.objects.options import ObjectsSource

Weigh = Callable[[str, int], int]
"""What an object weighs, by its location and its bytes."""


def weigh(source: ObjectsSource) -> Weigh:
    in_parts = cuttable(source)
    return lambda location, size: weight(size, cuttable=in_parts(location))


def spread(listed: Iterable[Listed], waiting: Mapping[str, int], weigh: Weigh) -> list[str]:
    """The lane of each object. ``waiting``: lane -> the weight of what is not acked yet; of lanes
    with the same weight the first one comes first."""
    heap = [(least, place, lane) for place, (lane, least) in enumerate(waiting.items())]
    heapify(heap)
    lanes = []
    for one in listed:
        least, place, lane = heap[0]
        lanes.append(lane)
        heapreplace(heap, (least + weigh(one.location, one.size), place, lane))
    return lanes
