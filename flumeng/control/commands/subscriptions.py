"""Flows that read other flows: each has a cursor at its upstream flow."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.config import FlowSpec, SpecError, chain, parse_flow
from flumeng.config.flow_names import parts_among
from flumeng.control.commands.chains import downstream_of
from flumeng.control.snapshot import leases
from flumeng.control.zookeeper import ABSENT, Check, Path, Put, ReadableStore, Versioned, Write
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN


def upstream_of(spec: FlowSpec) -> str | None:
    """The flow that a flow reads."""
    found = chain.upstream_of(spec)
    return found.flow if found else None


def readers_of(store: ReadableStore, flow: str) -> list[str]:
    """The names of cursors besides its own: flows and other readers."""
    cursors = store.children(paths.acks(flow))
    return sorted(cursor for cursor in cursors if cursor != CURSOR_MAIN)


def why_not_deleted(store: ReadableStore, flow: str) -> str:
    """Empty when only its own isolated parts read it."""
    names = readers_of(store, flow)
    parts = parts_among(names, flow)
    readers = sorted({*names, *downstream_of(store, flow)} - {*parts})
    if not readers:
        return ""
    commands = [
        f"`flumeng cursor delete {flow} {name}`"
        for name in readers
        if not store.exists(paths.flow(name))
    ]
    how = f" ({', '.join(commands)})" if commands else ""
    return (
        f"flow {flow} is read by {', '.join(readers)}: delete those first{how}, and when they are "
        "gone this one"
    )


def cursors_at_others(store: ReadableStore) -> dict[str, list[Path]]:
    """Flow -> its cursors at other flows."""
    flows = store.children(paths.flows())
    found: dict[str, list[Path]] = {}
    listed = store.children_many([paths.acks(flow) for flow in flows])
    for flow, cursors in zip(flows, listed, strict=True):
        for cursor in cursors:
            if cursor not in (flow, CURSOR_MAIN):
                found.setdefault(cursor, []).append(paths.cursor(flow, cursor))
    return found


def subscribe(
    store: ReadableStore, texts: Mapping[str, str], before: Mapping[str, str | None]
) -> tuple[dict[str, list[Write]], dict[str, str]]:
    """Flow -> writes that create its cursor, flow -> why it is refused. ``texts``: what they run
    when applied together; ``before``: what they run now."""
    writes: dict[str, list[Write]] = {}
    refused: dict[str, str] = {}
    taken = {cursor: read for read, cursor in leases.names(store)}
    for flow, text in texts.items():
        if flow in taken:
            refused[flow] = (
                f"a reader of flow {taken[flow]} has a cursor of the name {flow}: take another "
                f"name, or `flumeng cursor delete {taken[flow]} {flow}`"
            )
            continue
        upstream = upstream_of(parse_flow(text))
        said = _upstream_of_text(before.get(flow))
        if said not in (None, upstream):
            refused[flow] = (
                f"flow {flow} reads the flow {said}, which keeps for it what it has not read: "
                "delete it, and make another flow"
            )
        elif upstream is not None:
            why, made = _cursor(store, flow, upstream, texts)
            if why:
                refused[flow] = why
            writes[flow] = made
    return writes, refused


def _cursor(
    store: ReadableStore, flow: str, upstream: str, texts: Mapping[str, str]
) -> tuple[str, list[Write]]:
    record = store.read(paths.flow(upstream))
    if record is None and upstream not in texts:
        return f"flow {flow} reads the flow {upstream}, which is not there: apply that first", []
    if record is not None and record.value.state == "deleted":
        return f"flow {flow} reads the flow {upstream}, which is being deleted", []
    text = texts.get(upstream)
    if text is None and record is not None:
        found = store.read(paths.revision(upstream, str(record.value.revision)))
        text = found.value.effective if found else None
    if not has_journals(text):
        return (
            f"flow {flow} reads the flow {upstream}, which has no journals: read what that flow "
            "reads",
            [],
        )
    if record is not None and flow in store.children(paths.acks(upstream)):
        return "", []
    made: list[Write] = [Put(paths.cursor(upstream, flow), None, ABSENT)]
    if isinstance(record, Versioned) and upstream not in texts:
        made.insert(0, Check(paths.flow(upstream), record.version))
    return "", made


def _upstream_of_text(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return upstream_of(parse_flow(text))
    except SpecError:
        return None


def has_journals(text: str | None) -> bool:
    """Whether a flow of that text has journals on its own nodes."""
    try:
        spec = parse_flow(text or "")
    except SpecError:
        return False
    return bool(spec.pinned) and spec.journal.kafka is None
