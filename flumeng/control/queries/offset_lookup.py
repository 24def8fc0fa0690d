"""Resolves ``earliest``, ``latest``, a time or named offsets to an offset of each partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal

from flumeng.control.queries import fan_out, journals
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import partitions
from flumeng.control.snapshot.partitions import PartitionBounds
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import UnavailableError, UnknownNameError, UserError
from flumeng.platform.options.problems import nearest
from flumeng.platform.options.texts import time_of
from zkschema import paths
from zkschema.records import DISCOVER

Point = Literal["earliest", "latest"] | datetime | Mapping[str, int]
"""A mapping has offsets by name or label of partitions."""
WORDS: Mapping[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest"}
NAMED = 3
OFFSETS_SECONDS = 15.0
"""Time limit of a request, in which discovery asks the brokers."""
Ask = Callable[[str, str, Collection[str], str], Mapping[str, int]]
"""Returns offsets of a flow's partitions, from the discovery process at an address."""


def parse_point(text: str) -> Point:
    """Parse ``earliest``, ``latest``, a zoned time, or ``orders.3=1200``. Raises ``UserError``."""
    if (word := WORDS.get(text)) is not None:
        return word
    if "=" not in text:
        try:
            return time_of(text)
        except ValueError as error:
            raise UserError(
                f"{text}: {error}, or offsets by partition, like orders.3=1200,orders.4=7"
            ) from error
    offsets_given: dict[str, int] = {}
    for item in text.split(","):
        name, _, offset = item.strip().rpartition("=")
        if not name or not (offset.isascii() and offset.isdigit()):
            raise UserError(f"{item.strip()}: expected PARTITION=OFFSET, such as orders.3=1200")
        if offsets_given.setdefault(name, int(offset)) != int(offset):
            raise UserError(f"partition {name} is given twice")
    return offsets_given


def choose(names: Collection[str], globs: Sequence[str]) -> list[str]:
    """Return the partitions whose name or label matches a glob; all without globs. Raises
    ``UserError`` for a glob without a match."""
    if not globs:
        return sorted(names)
    chosen = set()
    for glob in globs:
        like = [
            name
            for name in names
            if fnmatchcase(name, glob) or fnmatchcase(partitions.label_of(name), glob)
        ]
        if not like:
            hint = nearest(glob, names) if names else "the flow has none"
            raise UserError(f'no partition matches "{glob}"; {hint}')
        chosen.update(like)
    return sorted(chosen)


@dataclass(frozen=True)
class Resolved:
    """Resolved ``offsets`` by partition. ``accepted``: the point by held back partition."""

    offsets: Mapping[str, int]
    accepted: Mapping[str, str]


def resolve(
    store: ReadableStore,
    flow: str,
    point: Point,
    globs: Sequence[str] = (),
    *,
    ask: journals.Ask,
    ask_offsets: Ask,
) -> Resolved:
    """Return the offset of each chosen partition, without those replaced by accepted ones. Raises
    ``UserError``, and ``UnavailableError`` for an unknown end."""
    cache = ReadCache.of(store)
    partitions_of_flow = _without_replaced(partitions.of_flows(cache, [flow])[flow])
    accepted: Mapping[str, str] = {}
    if isinstance(point, Mapping):
        if globs:
            raise UserError("offsets name their partitions already: remove --partitions")
        point = {_named(name, partitions_of_flow): offset for name, offset in point.items()}
        names = sorted(point)
    else:
        record = cache.read(paths.partitions(flow))
        held = record.value.held if record else {}
        replaced = {_before_dot(name) for name in held}
        partitions_of_flow = {
            name: partition
            for name, partition in partitions_of_flow.items()
            if partition.node or _before_dot(partitions.label_of(name)) not in replaced
        }
        chosen = choose({*partitions_of_flow, *held}, globs)
        names = [name for name in chosen if name in partitions_of_flow]
        word = point.isoformat() if isinstance(point, datetime) else point
        accepted = {name: word for name in chosen if name in held}
    on_nodes = [name for name in names if partitions_of_flow[name].node]
    others = [name for name in names if not partitions_of_flow[name].node]
    if isinstance(point, datetime) and on_nodes:
        raise UserError(
            f"{on_nodes[0]} is a journal, which cannot be searched by time: use earliest, latest, "
            "or an offset (`flumeng journal dump` shows events with their times)"
        )
    reach = _on_nodes(store, ask, partitions_of_flow, on_nodes)

    def from_discovery(to: str) -> dict[str, int]:
        return offsets(store, ask_offsets, flow, others, to) if others else {}

    return Resolved(_offsets(point, names, reach, from_discovery), accepted)


def _offsets(
    point: Point,
    names: Sequence[str],
    reach: Mapping[str, tuple[int, int]],
    others: Callable[[str], dict[str, int]],
) -> dict[str, int]:
    """Return all offsets. ``reach``: the ranges on nodes; ``others`` resolves all others."""
    if isinstance(point, datetime):
        return _complete(others(point.isoformat()), names)
    if point == "earliest":
        return _complete({name: floor for name, (floor, _) in reach.items()} | others(point), names)
    if point == "latest":
        return _complete({name: end for name, (_, end) in reach.items()} | others(point), names)
    first = _offsets("earliest", names, reach, others)
    ends = _offsets("latest", names, reach, others)
    for name, offset in point.items():
        if not first[name] <= offset <= ends[name]:
            raise UserError(
                f"partition {name} has no offset {offset}: expected {first[name]} to {ends[name]}"
            )
    return dict(point)


def require_same(starts: Mapping[str, int], ends: Mapping[str, int]) -> None:
    """Raises ``UserError`` unless both name the same partitions."""
    alone = sorted(starts.keys() ^ ends.keys())
    if alone:
        raise UserError(f"partition {alone[0]} is only in one of --from and --to: name it in both")


def _without_replaced(of_flow: Mapping[str, PartitionBounds]) -> dict[str, PartitionBounds]:
    """Return the partitions without the ended ones of a topic that was recreated."""
    there = {partitions.label_of(name) for name, part in of_flow.items() if part.end is None}
    return {
        name: partition
        for name, partition in of_flow.items()
        if partition.node or partition.end is None or partitions.label_of(name) not in there
    }


def _named(name: str, of_flow: Mapping[str, PartitionBounds]) -> str:
    if name in of_flow:
        return name
    like = [candidate for candidate in sorted(of_flow) if partitions.label_of(candidate) == name]
    if not like:
        labels = {partitions.label_of(candidate) for candidate in of_flow}
        hint = nearest(name, labels) if labels else "the flow has none"
        raise UnknownNameError(f'there is no partition "{name}"; {hint}')
    if len(like) > 1:
        raise UserError(f"partition {name} is ambiguous: use one of {', '.join(like)}")
    return like[0]


def _on_nodes(
    store: ReadableStore,
    ask: journals.Ask,
    of_flow: Mapping[str, PartitionBounds],
    names: Sequence[str],
) -> dict[str, tuple[int, int]]:
    """Return first offset and end of partitions on nodes, without those of silent nodes."""
    answers, _ = fan_out.ask_all(ReadCache.of(store), ask) if names else ({}, ())
    accounts = {name: answers.get(of_flow[name].node, {}).get(name) for name in names}
    return {name: (a.floor, a.safe) for name, a in accounts.items() if a is not None}


def _before_dot(name: str) -> str:
    return name.rpartition(".")[0]


def _complete(resolved: dict[str, int], names: Sequence[str]) -> dict[str, int]:
    missing = [name for name in names if name not in resolved]
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise UnavailableError(f"no process reports offsets of {', '.join(missing[:NAMED])}{more}")
    return resolved


def ask_discovery(
    address: str, flow: str, partitions: Collection[str], to: str
) -> Mapping[str, int]:
    with fan_out.client(address, OFFSETS_SECONDS) as client:
        return client.offsets(flow, partitions, to)


def offsets(
    store: ReadableStore, ask: Ask, flow: str, partitions: Collection[str], to: str
) -> dict[str, int]:
    """Return the offsets by partition, without silent partitions. ``to``: ``earliest``, ``latest``
    or a zoned time (the first event that is not older, else the end). Raises ``UserError``, and
    ``UnavailableError`` without discovery."""
    cache = ReadCache(store)
    plans = read_plans(cache, [flow])
    tasks = plans[flow].value.tasks.values() if flow in plans else ()
    nodes = [task.node for task in tasks if task.kind == DISCOVER and task.node is not None]
    live = cache.read_many([paths.live_node(node) for node in nodes])
    addresses = [node.value.discovery for node in live if node is not None and node.value.discovery]
    if not addresses:
        raise UnavailableError(
            f"offsets are unknown: the discovery task of flow {flow} is not running (see "
            "`flumeng task list`; a flow that was stopped before it discovered partitions has "
            f"none: `flumeng flow pause {flow}` first)"
        )
    return dict(ask(addresses[0], flow, partitions, to))
