"""Isolated parts of flows (``flumeng.config.isolation``): each changes together with its flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flumeng.config import SpecError, parse_flow, parts_of
from flumeng.config.flow_names import is_part, whole_of
from flumeng.control.commands.chains import upstream_of
from flumeng.control.commands.lookup import readable_by_name
from flumeng.control.commands.unfinished_writes import intents_of
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.partitions import ack_path, journal_of, subscribed
from flumeng.control.zookeeper import ABSENT, Put, ReadableStore, Versioned, Write
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.table import ZPath


@dataclass(frozen=True)
class Leaving:
    """An isolated part that is removed from its flow. ``unread``: events that the flow acked and
    the part did not; ``ahead``: the reverse."""

    flow: str
    unread: int
    ahead: int

    def __str__(self) -> str:
        whole = whole_of(self.flow)
        sentences = [f"flow {self.flow} is deleted"]
        if self.unread:
            sentences.append(
                f"its sinks lack {self.unread} events that flow {whole} has delivered, for good"
            )
        if self.ahead:
            sentences.append(f"its sinks have {self.ahead} events that flow {whole} lacks yet")
        return "; ".join(sentences)


def with_parts(texts: Mapping[str, str]) -> dict[str, str]:
    return {
        name: made
        for flow, text in texts.items()
        for name, made in {flow: text, **parts_of(text)}.items()
    }


def parts_there(store: ReadableStore, flows: Iterable[str]) -> dict[str, Versioned[records.Flow]]:
    """Return the readable isolated parts of these flows, without those being deleted."""
    wholes = set(flows)
    all_parts = filter(is_part, store.children(paths.flows()))
    names = [name for name in all_parts if whole_of(name) in wholes]
    parts = readable_by_name(store, paths.flow, names)
    return {name: part for name, part in parts.items() if part.value.state != "deleted"}


def deletion(
    parts: Mapping[str, Versioned[records.Flow]], *, discard: bool = False
) -> Iterable[Write]:
    for name, part in parts.items():
        record = replace(part.value, state="deleted", discard=discard or part.value.discard)
        yield Put(paths.flow(name), record, part.version)


def leaving(store: ReadableStore, flow: str, text: str, part: str) -> Leaving:
    """Return the backlog and lead of a part that the flow, which has this text, removes."""
    done = _begun(store, flow, text)
    starts = _starts(store, part)
    acks = _acks(store, _cursor(flow, text, part))
    mine = {name: acks[name].offset if name in acks else starts.get(name, 0) for name in done}
    behind = [done[name] - mine[name] for name in done]
    return Leaving(
        part, sum(max(0, events) for events in behind), sum(max(0, -events) for events in behind)
    )


def beginning(store: ReadableStore, flow: str, text: str, part: str) -> list[Write]:
    """Return the writes that start a new part at the offset that its flow delivered or decided.
    ``text``: the flow's new text. Unfinished joined lines go to the part's acks."""
    begun = _begun(store, flow, text)
    after = records.Partitions(
        partitions={subscribed(name): records.Partition(start=at) for name, at in begun.items()}
    )
    if not begun:
        return []
    acks = _acks(store, _cursor(flow, text, flow))
    joined = [
        Put(ack_path(part, subscribed(name)), replace(ack, epoch=0), ABSENT)
        for name, ack in acks.items()
        if ack.joined is not None and begun.get(name) == ack.offset
    ]
    return [*discovered.writes(part, records.Partitions(), after, ABSENT), *joined]


def _begun(store: ReadableStore, flow: str, text: str) -> dict[str, int]:
    """Return, by journal, the offset up to which the flow delivered or decided. A batch that a
    revision with ``multiline`` decided does not count: its last event may go on behind its end."""
    offsets = {name: ack.offset for name, ack in _acks(store, _cursor(flow, text, flow)).items()}
    intents = [i.value for i in intents_of(store, flow).values() if isinstance(i, Versioned)]
    numbers = {str(intent.revision) for intent in intents if intent.ranges}
    revisions = readable_by_name(store, lambda number: paths.revision(flow, number), numbers)
    plain = {number for number, one in revisions.items() if not _joins_lines(one.value.effective)}
    for intent in intents:
        if str(intent.revision) in plain:
            for name, (_, end) in intent.ranges.items():
                journal = journal_of(name)
                offsets[journal] = max(end, offsets.get(journal, 0))
    return offsets


def _joins_lines(text: str) -> bool:
    try:
        return parse_flow(text).multiline is not None
    except SpecError:  # of another flumeng: the events after the ack may come twice, none is lost
        return True


def _starts(store: ReadableStore, flow: str) -> dict[str, int]:
    (record,) = discovered.read(store, [flow])
    discovered_partitions = record.value.partitions if isinstance(record, Versioned) else {}
    return {journal_of(name): partition.start for name, partition in discovered_partitions.items()}


def _acks(store: ReadableStore, cursor: ZPath[records.Record]) -> dict[str, records.Ack]:
    _, _, flow, name = str(cursor).split("/")
    journals = store.children(cursor)
    acks = readable_by_name(store, lambda journal: paths.ack(flow, name, journal), journals)
    return {journal: ack.value for journal, ack in acks.items()}


def _cursor(flow: str, text: str, reader: str) -> ZPath[records.Record]:
    """Return the cursor of the flow or of its part; both read the same journals."""
    upstream = upstream_of(parse_flow(text))
    return paths.cursor(
        upstream or flow, CURSOR_MAIN if reader == flow and not upstream else reader
    )
