"""The guarantees of a flow; combinations of options that break them are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flumeng.config import isolation
from flumeng.config.branch import Located
from flumeng.config.component import DEAD_LETTER, DROP, Component, ExactlyOnce, SinkOptions
from flumeng.config.flow import Delivery, FlowSpec, JournalOptions, TaskRange

SURVIVES = {
    "disk": "survives a killed process and a power cut",
    "spill": "survives a killed process; a power cut may take about the last second of events",
    "memory": "is lost when the ingest worker is killed, and survives an orderly stop",
    "replicated": "is on the disks of all nodes in sync, and survives while one of those is left",
}
LOSES = {"spill": "a power cut", "memory": "the end of their process"}
DELIVERS = {
    "at-most-once": "reaches the sinks once or, after a failure, never",
    "at-least-once": "reaches the sinks once or, after a failure, more than once",
    "exactly-once": "shows in the sinks exactly once",
}


def promise(spec: FlowSpec) -> tuple[str, ...]:
    """Return the guarantees in sentences: before and after acceptance of events, and in sinks."""
    again = [source.name for source in spec.sources if "replayable" in source.options.guarantees]
    replayed = list(dict.fromkeys(again))
    arrivals = dict.fromkeys((s.name, s.options.arrival()) for s in spec.sources)
    which = "An event that survives" if spec.pinned else "A message that is read"
    sentences = [
        *(f"{name}: {arrival}." for name, arrival in arrivals),
        *kept(spec),
        f"{which} {DELIVERS[spec.delivery]} (delivery {spec.delivery}).",
    ]
    if spec.pinned and spec.durability in LOSES and replayed:
        sentences.append(f"Lost events are read again by {', '.join(replayed)}.")
    sentences += _unprocessed(spec)
    sentences += _parting(spec)
    sentences += _apart(spec)
    if paths := local_paths(spec):
        sentences.append(_one_host(spec, paths))
    sentences += _of_sinks(spec)
    if sinks := sum(leaf.part.options.makes_files for leaf in spec.leaves):
        sentences.append(_files_a_day(spec, sinks))
    return tuple(sentences)


def kept(spec: FlowSpec) -> Iterator[str]:
    """Yield the guarantee for accepted events in a sentence; nothing without a journal."""
    if spec.journal.kafka is not None:
        yield (
            f"An accepted event is in all replicas in sync of {spec.journal.kafka.location}, and "
            "is lost when Kafka deletes it before it is read."
        )
    elif spec.pinned:
        yield f"An accepted event {SURVIVES[spec.durability]} (durability {spec.durability})."


def _unprocessed(spec: FlowSpec) -> Iterator[str]:
    for part in spec.all_filters:
        if part.on_error == DROP:
            yield f"An event that {part.name} cannot process is dropped, and counted."
        elif part.on_error == DEAD_LETTER:
            yield f"An event that {part.name} cannot process goes to dead_letters."


def _parting(spec: FlowSpec) -> Iterator[str]:
    for located in spec.segments:
        branches = located.segment.branches
        if not branches or any(branch.when is None for branch in branches):
            continue
        names = [branch.name for branch in branches]
        of = f"the branches of {located.name}" if located.name else "the branches"
        which = f"An event that none of {of} takes ({', '.join(names)})"
        if sinks := ", ".join(sink.name for sink in located.segment.sinks):
            yield f"{which} goes into {sinks} only."
        else:
            yield f"{which} is dropped: a last branch with `otherwise: true` would take it."


def _apart(spec: FlowSpec) -> Iterator[str]:
    for part in isolation.parts(spec):
        yield (
            f"{part.path} is isolated, as the flow {part.flow}: other sinks do not wait for it "
            "until a journal is full of events that it has not read."
        )


def local_paths(spec: FlowSpec) -> list[str]:
    """Return the paths of sinks on the disk of the host that collects."""
    return [s.options.local_path for s in spec.targets if s.options.local]


def _one_host(spec: FlowSpec, paths: list[str]) -> str:
    where = f"{', '.join(paths)} is on the disk of each host that collects the flow"
    once = spec.delivery == "exactly-once"
    if not all(hasattr(sink.options, "shared") for sink in spec.targets if sink.options.local):
        return f"{where}: use one host only." if once else f"{where}."
    if not once:
        return f"{where} (`shared: true` when all see the same files there)."
    return f"{where}: use one host only, or set `shared: true` if all see the same files there."


ONCE = {
    "staged": "its files show together with the acks",
    "by event": "an event that is written again replaces itself",
    "by batch": "it remembers the last batch that it took",
}
"""Reasons why a sink can deliver exactly once."""
NUMBERED = "a repeated batch has the same number and the same events"


ONCE_LOST = "the ack comes before the write"
AGAIN = "a batch that is written again after a failure is there twice"


@dataclass(frozen=True)
class SinkPromise:
    """How often a sink has an event: ``times``. ``way``: how it recognises one, None when it does
    not. ``why``: the reason, as part of a sentence."""

    times: Delivery
    way: ExactlyOnce | None
    why: str


def of_sink(spec: FlowSpec, sink: Component[SinkOptions]) -> SinkPromise:
    """Return the guarantee of a sink of the flow, which its delivery limits."""
    return _of_sink(spec, sink, _unsteady(spec).get(sink.name))


def _of_sink(spec: FlowSpec, sink: Component[SinkOptions], unsteady: str | None) -> SinkPromise:
    way = sink.options.exactly_once
    if spec.delivery == "at-most-once":
        return SinkPromise("at-most-once", None, ONCE_LOST)
    if way == "by event" and unsteady is not None:
        why = (
            f"events are placed by {unsteady}, which comes from a table; when the table has "
            "changed, an event that is written again is there twice"
        )
        return SinkPromise("at-least-once", None, why)
    if way is not None and (spec.delivery == "exactly-once" or way == "by event"):
        return SinkPromise("exactly-once", way, ONCE[way])
    return SinkPromise("at-least-once", None, AGAIN)


def _of_sinks(spec: FlowSpec) -> Iterator[str]:
    sinks = {sink.name: sink for sink in spec.all_sinks}
    unsteady = _unsteady(spec)
    even = "" if spec.delivery == "exactly-once" else " even so"
    for name, sink in sinks.items():
        promised = _of_sink(spec, sink, unsteady.get(name))
        if promised.way is not None:
            yield f"{name}: each event once{even}, since {promised.why}."
        elif name in unsteady and promised.times == "at-least-once":
            yield f"{name}: {promised.why}."
    yield from (
        f"{name}: {NUMBERED}."
        for name in dict.fromkeys(s.name for s in spec.all_sinks if s.options.numbered)
    )
    for sink in spec.all_sinks:
        if sink.options.members:
            yield into_one(spec, sink)
    weak = [name for name, sink in sinks.items() if sink.options.exactly_once is None]
    if weak and len(weak) < len(sinks):
        yield (
            f"Exactly-once is not possible, since {', '.join(weak)} cannot recognise events that "
            "it already has: the weakest sink limits the flow."
        )


def _unsteady(spec: FlowSpec) -> dict[str, str]:
    if not any(part.options.looks_up for part in spec.all_filters):
        return {}
    from flumeng.config import columns  # noqa: PLC0415  # loads sqlglot

    unsteady = columns.unsteady_places(Located(spec), columns.read(spec))
    return {sink.name: column for _, sink, column in unsteady}


def into_one(spec: FlowSpec, group: Component[SinkOptions]) -> str:
    """Return the rule of a group of sinks in a sentence."""
    names = ", ".join(part.name for part in group.options.members)
    sentence = f"{group.name} ({names}): an event goes into one of them"
    if group.options.exactly_once is None and spec.delivery != "at-most-once":
        return f"{sentence}; when one fails in the middle, it may be in the next one too."
    return f"{sentence}."


def _files_a_day(spec: FlowSpec, sinks: int) -> str:
    seconds, given = spec.batch_seconds, spec.place.collect.tasks
    tasks = None if isinstance(given, TaskRange) else given
    whose = "each task" if tasks is None else "its task" if tasks == 1 else f"its {tasks} tasks"
    if seconds == 0:
        return f"Any number of files a day from {whose}: no batch waits for more events."
    count = round(86_400 / seconds) * (tasks or 1) * sinks
    return (
        f"About {count:,} files a day from {whose}: one for each batch, every {seconds:g} s "
        "(`batch.seconds`); more where a batch is of several directories, or has over 20,000 "
        "events."
    )


def check(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``(path, message)`` for conflicting options. ``parts``: valid values by path."""
    components = [(path, part) for path, part in parts.items() if isinstance(part, Component)]
    durability = parts.get("durability", "disk")
    if parts.get("delivery") == "exactly-once" and durability in LOSES:
        yield (
            "durability",
            f"exactly-once delivery needs durable events: with {durability} they do not survive "
            f"{LOSES[durability]}; use durability disk, or delivery at-least-once",
        )
    if "multiline" in parts and parts.get("delivery") == "at-most-once":
        yield (
            "multiline",
            "at-most-once acks a batch before its lines are read, and multiline can ack it only "
            "after that: use delivery at-least-once or exactly-once",
        )
    journal = parts.get("journal")
    if durability != "replicated" and "replicas" in parts:
        yield "replicas", "only events with `durability: replicated` have replicas: set that too"
    yield from _of_kafka(parts, components, durability, journal)
    yield from _of_queues(components)
    yield from _of_flow_source(parts, components)
    yield from _of_delivered(parts, components, journal)
    if durability == "memory" and journal and (journal.retain_seconds or journal.retain_bytes):
        yield "journal", "durability memory retains nothing: leave retain_* out, or use spill"
    if isinstance(parts.get("place.collect.tasks"), TaskRange) and _has_no_discovery(parts):
        yield (
            "place.collect.tasks",
            "a range needs a discovery task, which measures the lag, as flows with kafka have: "
            "give a number, or nothing for one task for each 16 journals",
        )
    sinks = [part for _, part in components if part.kind == "sink"]
    grouped = {id(member) for part in sinks for member in part.options.members}
    for path, component in components:
        if id(component) in grouped:
            continue
        if component.kind == "sink" and (wrong := _delivery_problem(parts, path, component)):
            yield path, wrong
    taken: dict[str, str] = {}
    for path, component in components:
        claims = component.options.claims()
        for name, what in claims:
            owner = taken.setdefault(what, path)
            if owner != path:
                yield f"{path}.{name}", f"{what} is already used by {owner}"


def _of_queues(components: list[tuple[str, Component[Any]]]) -> Iterator[tuple[str, str]]:
    """Yield a problem for each work queue of a flow after the first."""
    queued = [
        (path, part) for path, part in components if part.kind == "source" and part.options.queued
    ]
    for path, part in queued[1:]:
        first, before = queued[0]
        if part.name == before.name == "objects":
            yield path, f"{first} reads objects too: add the paths there, or make two flows"
        else:
            yield path, f"{first} has a work queue, and a flow may have only one: make two flows"


KAFKA = "kafka"


def _of_kafka(
    parts: Mapping[str, Any],
    components: list[tuple[str, Component[Any]]],
    durability: str,
    journal: JournalOptions | None,
) -> Iterator[tuple[str, str]]:
    in_kafka = journal is not None and journal.kafka is not None
    first: dict[str, str] = {}
    for path, part in components:
        if part.kind != "source" or first.setdefault(part.name, path) == path:
            continue
        if alone := part.options.alone:
            yield path, f"the flow already has {first[part.name]}: {alone}"
    if not in_kafka:
        return
    assert journal is not None
    if reader := first.get(KAFKA):
        yield "journal.kafka", f"{reader} reads Kafka too: make two flows"
    if durability == "replicated":
        yield "durability", "the topic sets the replicas of a journal in Kafka: use durability disk"
    elif durability != "disk":
        yield "durability", f"a journal in Kafka is as durable as disk, never {durability}"
    for name in ("max_bytes", "retain_seconds", "retain_bytes"):
        if f"journal.{name}" in parts:
            yield (f"journal.{name}", "in Kafka the settings of the topic limit it: leave this out")
    for path, part in components:
        if part.kind == "source" and part.options.keeps_place:
            yield (
                path,
                f"{part.name} keeps its position in a journal on disk, not in Kafka: give it a "
                "flow of its own, or leave journal.kafka out",
            )


def _of_flow_source(
    parts: Mapping[str, Any], components: list[tuple[str, Component[Any]]]
) -> Iterator[tuple[str, str]]:
    readers = [path for path, part in components if part.kind == "source" and part.options.upstream]
    if readers and len(parts.get("sources", ())) > 1:
        yield readers[0], "a flow that reads another flow has no other source: make two flows"
    for path in readers:
        if parts[path].options.upstream.flow == parts.get("flow"):
            yield f"{path}.name", "a flow cannot read itself"


def too_late(spec: FlowSpec) -> Iterator[tuple[str, str]]:
    """Yield ``(path, message)`` for sources whose senders time out before a batch is written."""
    for number, source in enumerate(spec.sources):
        seconds = source.options.delivered_within_seconds
        if seconds is not None and seconds <= spec.batch_seconds:
            yield (
                f"sources[{number}].{source.name}.ack",
                f"a small batch gathers events for {spec.batch_seconds:g} s, but senders wait only "
                f"{seconds:g} s for delivery: set a lower `batch.seconds`, or wait longer",
            )


def _of_delivered(
    parts: Mapping[str, Any],
    components: list[tuple[str, Component[Any]]],
    journal: JournalOptions | None,
) -> Iterator[tuple[str, str]]:
    for path, part in components:
        if part.kind != "source" or part.options.delivered_within_seconds is None:
            continue
        if parts.get("delivery") == "at-most-once":
            yield (
                f"{path}.ack",
                "at-most-once acks before the sinks write, so it cannot confirm a delivery: use "
                "delivery at-least-once or exactly-once, or ack: journaled",
            )
        if journal is not None and journal.kafka is not None:
            yield (
                f"{path}.ack",
                "with a journal in Kafka the worker does not know the offsets of its events: use "
                "ack: journaled, or leave journal.kafka out",
            )


def _has_no_discovery(parts: Mapping[str, Any]) -> bool:
    placings = {part.options.placing for part in parts.get("sources", ())}
    journal = parts.get("journal")
    return placings == {"pinned"} and (journal is None or journal.kafka is None)


def _delivery_problem(
    parts: Mapping[str, Any], where: str, sink: Component[SinkOptions]
) -> str | None:
    delivery, options = parts.get("delivery"), sink.options
    if delivery == "at-most-once" and options.decided(delivery):
        return (
            f"{sink.name} needs numbered batches, and only batches that can be repeated have "
            "numbers: use delivery at-least-once or exactly-once"
        )
    if delivery != "exactly-once":
        return None
    if options.exactly_once is None and options.members:
        return (
            "a member that fails in the middle may keep events that the next one gets too, unless "
            "all members stage their output, as files does: use delivery at-least-once"
        )
    if options.exactly_once is None:
        return (
            f"{sink.name} with these options cannot recognise events that it already has, as "
            "exactly-once needs: use delivery at-least-once"
        )
    looks_up = any(
        part.options.looks_up
        for path, part in parts.items()
        if isinstance(part, Component) and part.kind == "filter" and _is_before(path, where)
    )
    if looks_up and options.cut_by_content:
        return (
            f"{sink.name} cuts a batch by the content of its events, and a table that was read "
            "again changes that in a repeat: use delivery at-least-once, or no table"
        )
    return None


def _is_before(path: str, sink: str) -> bool:
    """Return whether the sink's events pass the filter; dead letters come from all filters."""
    return sink.startswith(("dead_letters", path.rpartition("filters[")[0]))
