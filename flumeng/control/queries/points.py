"""Resolves ``earliest``, ``latest``, a time or named offsets to an offset of each partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal

from flumeng.control.queries import asking, journals
from flumeng.control.queries.reading import Reading
from flumeng.control.snapshot import partitions
from flumeng.control.snapshot.partitions import Known
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import ReadableStore, Store
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.options.problems import nearest
from flumeng.platform.options.texts import time_of
from zkschema import paths
from zkschema.records import DISCOVER

Point = Literal["earliest", "latest"] | datetime | Mapping[str, int]
"""A mapping is by name or label of partitions."""
WORDS: Mapping[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest"}
NAMED = 3
OFFSETS_SECONDS = 15.0
"""Time limit: discovery asks brokers."""
Ask = Callable[[str, str, Collection[str], str], Mapping[str, int]]
"""Asks the discovery process at an address for offsets of a flow's partitions."""


def parse_point(text: str) -> Point:
    """Parses ``earliest``, ``latest``, a zoned time, or ``orders.3=1200``. Raises ``UserError``."""
    if (word := WORDS.get(text)) is not None:
        return word
    if "=" not in text:
        try:
            return time_of(text)
        except ValueError as error:
            raise UserError(
                f"{text}: {error}, or offsets by partition, like orders.3=1200,orders.4=7"
            ) from error
    found: dict[str, int] = {}
    for item in text.split(","):
        name, _, offset = item.strip().rpartition("=")
        if not name or not (offset.isascii() and offset.isdigit()):
            raise UserError(f"{item.strip()}: expected a partition and an offset, orders.3=1200")
        if found.setdefault(name, int(offset)) != int(offset):
            raise UserError(f"{name} is given twice")
    return found


def choose(known: Collection[str], globs: Sequence[str]) -> list[str]:
    """Partitions whose name or label matches a glob; all without globs. Raises ``UserError`` for a
    glob without a match."""
    if not globs:
        return sorted(known)
    chosen = set()
    for glob in globs:
        like = [
            name
            for name in known
            if fnmatchcase(name, glob) or fnmatchcase(partitions.label_of(name), glob)
        ]
        if not like:
            hint = nearest(glob, known) if known else "the flow has none"
            raise UserError(f'no partition is like "{glob}"; {hint}')
        chosen.update(like)
    return sorted(chosen)


@dataclass(frozen=True)
class Resolved:
    """``offsets``: by partition. ``accepted``: partition held back by discovery -> start."""

    offsets: Mapping[str, int]
    accepted: Mapping[str, str]


def resolve(
    store: Store,
    flow: str,
    point: Point,
    globs: Sequence[str] = (),
    *,
    ask: journals.Ask,
    ask_offsets: Ask,
) -> Resolved:
    """The offset of each chosen partition, without those replaced by accepted ones. Raises
    ``UserError``, and ``UnavailableError`` for an unknown end."""
    reading = Reading.of(store)
    known = _without_replaced(partitions.of_flows(reading, [flow])[flow])
    accepted: Mapping[str, str] = {}
    if isinstance(point, Mapping):
        if globs:
            raise UserError("offsets name their partitions: leave --partitions out")
        point = {_named(name, known): offset for name, offset in point.items()}
        names = sorted(point)
    else:
        record = reading.read(paths.partitions(flow))
        held = record.value.held if record else {}
        replaced = {_before_dot(name) for name in held}
        known = {
            name: one
            for name, one in known.items()
            if one.node or _before_dot(partitions.label_of(name)) not in replaced
        }
        chosen = choose({*known, *held}, globs)
        names = [name for name in chosen if name in known]
        word = point.isoformat() if isinstance(point, datetime) else point
        accepted = {name: word for name in chosen if name in held}
    on_nodes = [name for name in names if known[name].node]
    others = [name for name in names if not known[name].node]
    if isinstance(point, datetime) and on_nodes:
        raise UserError(
            f"{on_nodes[0]} is a journal, and journals cannot be searched by time: say earliest, "
            "latest, or an offset (`flumeng journal dump` shows events with their times)"
        )
    reach = _on_nodes(store, ask, known, on_nodes)

    def told(to: str) -> dict[str, int]:
        return offsets(store, ask_offsets, flow, others, to) if others else {}

    return Resolved(_offsets(point, names, reach, told), accepted)


def _offsets(
    point: Point,
    names: Sequence[str],
    reach: Mapping[str, tuple[int, int]],
    told: Callable[[str], dict[str, int]],
) -> dict[str, int]:
    """``reach``: the ranges on nodes; the callable resolves the other partitions."""
    if isinstance(point, datetime):
        return _complete(told(point.isoformat()), names)
    if point == "earliest":
        return _complete({name: floor for name, (floor, _) in reach.items()} | told(point), names)
    if point == "latest":
        return _complete({name: end for name, (_, end) in reach.items()} | told(point), names)
    first = _offsets("earliest", names, reach, told)
    ends = _offsets("latest", names, reach, told)
    for name, offset in point.items():
        if not first[name] <= offset <= ends[name]:
            raise UserError(
                f"{name} has offsets from {first[name]} up to {ends[name]}, and not {offset}"
            )
    return dict(point)


def require_same(starts: Mapping[str, int], ends: Mapping[str, int]) -> None:
    """Raises ``UserError`` when they do not name the same partitions."""
    alone = sorted(starts.keys() ^ ends.keys())
    if alone:
        raise UserError(f"{alone[0]} is in one of --from and --to, and not in the other")


def _without_replaced(known: Mapping[str, Known]) -> dict[str, Known]:
    """Drops ended partitions of a recreated topic."""
    there = {partitions.label_of(name) for name, one in known.items() if one.end is None}
    return {
        name: one
        for name, one in known.items()
        if one.node or one.end is None or partitions.label_of(name) not in there
    }


def _named(name: str, known: Mapping[str, Known]) -> str:
    if name in known:
        return name
    like = [one for one in sorted(known) if partitions.label_of(one) == name]
    if not like:
        labels = {partitions.label_of(one) for one in known}
        hint = nearest(name, labels) if labels else "the flow has none"
        raise UserError(f'there is no partition "{name}"; {hint}')
    if len(like) > 1:
        raise UserError(f"{name} may be any of {', '.join(like)}: give its whole name")
    return like[0]


def _on_nodes(
    store: Store, ask: journals.Ask, known: Mapping[str, Known], names: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Partition -> first offset and end; lacks those of silent nodes."""
    told, _ = asking.ask_all(Reading.of(store), ask) if names else ({}, ())
    accounts = {name: told.get(known[name].node, {}).get(name) for name in names}
    return {name: (one.floor, one.safe) for name, one in accounts.items() if one is not None}


def _before_dot(name: str) -> str:
    return name.rpartition(".")[0]


def _complete(found: dict[str, int], names: Sequence[str]) -> dict[str, int]:
    missing = [name for name in names if name not in found]
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise UnavailableError(f"nobody says how far {', '.join(missing[:NAMED])}{more} reach")
    return found


def ask_discovery(
    address: str, flow: str, partitions: Collection[str], to: str
) -> Mapping[str, int]:
    with asking.client(address, OFFSETS_SECONDS) as client:
        return client.offsets(flow, partitions, to)


def offsets(
    store: ReadableStore, ask: Ask, flow: str, partitions: Collection[str], to: str
) -> dict[str, int]:
    """Partition -> offset; lacks silent partitions. ``to``: ``earliest``, ``latest`` or a zoned
    time (first event not older, else the end). Raises ``UserError``, and ``UnavailableError``
    without discovery."""
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
