"""Where partitions that are not journals would begin, as the flow's discovery task knows it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from flumeng.control.queries.reading import Reading
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import UnavailableError
from zkschema import paths
from zkschema.records import DISCOVER

OFFSETS_SECONDS = 15.0
"""So long it may take: brokers are asked."""

Ask = Callable[[str, str, Collection[str], str], Mapping[str, int]]
"""Asks the discovery process at an address for offsets of a flow's partitions."""


def ask_discovery(
    address: str, flow: str, partitions: Collection[str], to: str
) -> Mapping[str, int]:
    """The ``Ask`` of a real cluster."""
    from flumeng.journal.serving.client import JournalClient  # noqa: PLC0415  loads pyarrow

    with JournalClient(address, OFFSETS_SECONDS) as client:
        return client.offsets(flow, partitions, to)


def offsets(
    store: ReadableStore, ask: Ask, flow: str, partitions: Collection[str], to: str
) -> dict[str, int]:
    """Partition -> the offset at which it would begin; ``to`` is ``earliest``, ``latest``, or a
    time with its zone, for which it is the first event that is not older (the end, when all are).

    Lacks partitions that do not say, such as those of a topic that is gone. Raises UnavailableError
    when the flow's discovery task does not run, or does not answer, and UserError.
    """
    reading = Reading(store)
    plans = read_plans(reading, [flow])
    tasks = plans[flow].value.tasks.values() if flow in plans else ()
    nodes = [task.node for task in tasks if task.kind == DISCOVER and task.node is not None]
    live = reading.read_many([paths.live_node(node) for node in nodes])
    addresses = [one.value.discovery for one in live if one is not None and one.value.discovery]
    if not addresses:
        raise UnavailableError(
            f"nobody knows the offsets: the discovery task of flow {flow} does not run (see "
            "`flumeng task list`; a flow that was stopped before it found partitions has none: "
            f"`flumeng flow pause {flow}` first)"
        )
    return dict(ask(addresses[0], flow, partitions, to))
