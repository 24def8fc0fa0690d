"""Flows that read others: their cursors and their texts, composed by ``flumeng.config.chain``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from flumeng.config import FlowSpec, SpecError, chain, parse_flow
from flumeng.config.chain import CycleError, chain_of, composed
from flumeng.config.flow_names import is_part, parts_among
from flumeng.control.commands.lookup import current_revisions, found_by_name
from flumeng.control.snapshot import leases
from flumeng.control.zookeeper import (
    ABSENT,
    Check,
    Found,
    Path,
    Put,
    ReadableStore,
    Versioned,
    Write,
)
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN


@dataclass(frozen=True)
class Composition:
    """A flow's ``text``, and ``runs``: the text composed with ``chain``, or "". ``because``: why
    the text of another flow changes this one."""

    text: str
    runs: str = ""
    chain: tuple[str, ...] = ()
    because: str = ""

    @property
    def effective(self) -> str:
        return self.runs or self.text


class CurrentTexts:
    """A cache of flows and their current texts. The ``applied`` texts replace the stored ones."""

    def __init__(self, store: ReadableStore, applied: Mapping[str, str]) -> None:
        self._store = store
        self._applied = applied
        self.flows: dict[str, Found[records.Flow]] = {}
        self.revisions: dict[str, records.Revision] = {}

    def read(self, flows: Iterable[str]) -> None:
        """Read the flows, then their revisions, which never change. Deleted flows have none."""
        missing = [flow for flow in dict.fromkeys(flows) if flow not in self.flows]
        records_by_flow = found_by_name(self._store, paths.flow, missing)
        self.flows |= records_by_flow
        there = {
            flow: record
            for flow, record in records_by_flow.items()
            if isinstance(record, Versioned) and record.value.state != "deleted"
        }
        texts = current_revisions(self._store, there)
        self.revisions |= {flow: r.value for flow, r in texts.items() if isinstance(r, Versioned)}

    def text_of(self, flow: str) -> str | None:
        if flow in self._applied:
            return self._applied[flow]
        self.read([flow])
        revision = self.revisions.get(flow)
        return revision.text if revision else None

    def origin_of(self, flow: str) -> str:
        revision = self.revisions.get(flow)
        try:
            upstream = upstream_of(parse_flow(revision.effective)) if revision else None
        except SpecError:
            upstream = None
        return upstream or flow

    def readers(self, flows: Iterable[str]) -> list[str]:
        """Return the other flows that read from ``flows``, or from the same origins: ``flows`` may
        be in their chains."""
        names_given = set(flows)
        self.read(sorted(names_given))
        there = set(self._store.children(paths.flows()))
        origins = sorted({*names_given, *map(self.origin_of, names_given)} & there)
        cursors = self._store.children_many([paths.acks(origin) for origin in origins])
        names = {name for listed in cursors for name in listed if not is_part(name)}
        readers = sorted((names & there) - names_given)
        self.read(readers)
        return [name for name in readers if name in self.revisions]


@dataclass(frozen=True)
class Composed:
    """Composed flows. ``flows``: the applied ones, then those that change with them. ``refused``:
    reason by flow. ``records`` are read first, so that a concurrent change conflicts."""

    flows: Mapping[str, Composition]
    refused: Mapping[str, str]
    records: Mapping[str, Found[records.Flow]]


def compose(store: ReadableStore, texts: Mapping[str, str]) -> Composed:
    """Compose the texts (by flow) as if all were applied together."""
    current = CurrentTexts(store, texts)
    current.read(texts)
    made: dict[str, Composition] = {}
    refused: dict[str, str] = {}
    for flow, text in texts.items():
        try:
            made[flow] = _composition(current, flow) or Composition(text)
        except CycleError as error:
            refused[flow] = str(error)
        except SpecError as error:
            refused[flow] = f"flow {flow}: {_problems(error)}"
    for reader in current.readers(texts):
        changed = [flow for flow in _chain(current, reader) if flow in texts]
        if not changed or any(flow in refused for flow in changed):
            continue
        try:
            composition = _composition(current, reader)
        except SpecError as error:
            refused[changed[0]] = f"flow {reader}, which reads {changed[0]}: {_problems(error)}"
            continue
        if composition is not None and composition.effective != current.revisions[reader].effective:
            because = f"filters of {', '.join(changed)} changed"
            made[reader] = replace(composition, because=because)
    return Composed(made, refused, current.flows)


def downstream_of(store: ReadableStore, flow: str) -> list[str]:
    """Return the flows that have this one in their chains."""
    current = CurrentTexts(store, {})
    return [reader for reader in current.readers([flow]) if flow in _chain(current, reader)]


def composed_with(store: ReadableStore, flows: Collection[str]) -> list[str]:
    """Return the other flows whose tasks run a text composed with one of these."""
    current = CurrentTexts(store, {})
    return [
        reader
        for reader in current.readers(flows)
        if current.revisions[reader].runs and not set(flows).isdisjoint(_chain(current, reader))
    ]


def _chain(current: CurrentTexts, flow: str) -> tuple[str, ...]:
    """Return the flows that this one reads through; empty for a broken or circular chain."""
    try:
        return tuple(link.flow for link in chain_of(flow, current.text_of))
    except (CycleError, SpecError):
        return ()


def _composition(current: CurrentTexts, flow: str) -> Composition | None:
    """Compose the flow; None when its chain lacks a flow. Raises ``CycleError``, ``SpecError``."""
    text = current.text_of(flow)
    chain = chain_of(flow, current.text_of)
    texts = [chain_text for link in chain if (chain_text := current.text_of(link.flow)) is not None]
    if text is None or len(texts) < len(chain):
        return None
    runs = composed(text, chain, texts)
    return Composition(text, runs, tuple(link.flow for link in chain) if runs else ())


def _problems(error: SpecError) -> str:
    return "; ".join(
        f"{fault.path}: {fault.message}" if fault.path else fault.message
        for fault in error.problems
    )


def upstream_of(spec: FlowSpec) -> str | None:
    source = chain.upstream_of(spec)
    return source.flow if source else None


def readers_of(store: ReadableStore, flow: str) -> list[str]:
    """Return the names of other readers' cursors: flows and external readers."""
    cursors = store.children(paths.acks(flow))
    return sorted(cursor for cursor in cursors if cursor != CURSOR_MAIN)


def why_not_deleted(store: ReadableStore, flow: str) -> str:
    """Return why the flow may not be deleted; empty when only its isolated parts read it."""
    names = readers_of(store, flow)
    parts = parts_among(names, flow)
    readers = sorted({*names, *downstream_of(store, flow)} - {*parts})
    if not readers:
        return ""
    commands = [
        f"`flumeng cursor end {flow} {name}`"
        for name in readers
        if not store.exists(paths.flow(name))
    ]
    how = f" ({', '.join(commands)})" if commands else ""
    return f"flow {flow} is read by {', '.join(readers)}: delete those first{how}, then flow {flow}"


def cursors_at_others(store: ReadableStore) -> dict[str, list[Path]]:
    """Return each flow's cursors at other flows."""
    flows = store.children(paths.flows())
    cursors_of: dict[str, list[Path]] = {}
    listed = store.children_many([paths.acks(flow) for flow in flows])
    for flow, cursors in zip(flows, listed, strict=True):
        for cursor in cursors:
            if cursor not in (flow, CURSOR_MAIN):
                cursors_of.setdefault(cursor, []).append(paths.cursor(flow, cursor))
    return cursors_of


def subscribe(
    store: ReadableStore, texts: Mapping[str, str], before: Mapping[str, str | None]
) -> tuple[dict[str, list[Write]], dict[str, str]]:
    """Return the writes that create each reading flow's cursor (none for an existing one), and the
    reason of each refused flow. ``texts``: after the apply; ``before``: the current ones."""
    writes: dict[str, list[Write]] = {}
    refused: dict[str, str] = {}
    taken = {cursor: read for read, cursor in leases.names(store)}
    for flow, text in texts.items():
        if flow in taken:
            refused[flow] = (
                f"a reader of flow {taken[flow]} has a cursor named {flow}: choose another "
                f"name, or `flumeng cursor end {taken[flow]} {flow}`"
            )
            continue
        spec = parse_flow(text)
        if why := _unknown_site(store, flow, spec):
            refused[flow] = why
            continue
        upstream = upstream_of(spec)
        upstream_before = _upstream_of_text(before.get(flow))
        if upstream_before not in (None, upstream):
            refused[flow] = (
                f"flow {flow} reads flow {upstream_before}, which keeps its unread events: delete "
                "it, and create another flow"
            )
        elif upstream is not None:
            why, made = _cursor(store, flow, upstream, texts)
            if why:
                refused[flow] = why
            writes[flow] = made
    return writes, refused


def _unknown_site(store: ReadableStore, flow: str, spec: FlowSpec) -> str:
    """Return why the flow of another site cannot be read; "" when it can, or none is."""
    for remote in filter(None, (source.options.remote for source in spec.sources)):
        if not store.exists(paths.site(remote.site)):
            return (
                f"flow {flow} reads from the site {remote.site}, which is unknown here: "
                f"`flumeng site add {remote.site}`"
            )
        cluster = store.read(paths.cluster())
        if cluster is not None and not cluster.value.site:
            return (
                f"flow {flow} reads from the site {remote.site}, but this cluster has no name "
                "among sites: `flumeng site name NAME`"
            )
        if cluster is not None and cluster.value.site == remote.site:
            return f"flow {flow} reads from the site {remote.site}, which is this one: omit `site`"
    return ""


def _cursor(
    store: ReadableStore, flow: str, upstream: str, texts: Mapping[str, str]
) -> tuple[str, list[Write]]:
    record = store.read(paths.flow(upstream))
    if record is None and upstream not in texts:
        return f"flow {flow} reads flow {upstream}, which does not exist: apply that first", []
    if record is not None and record.value.state == "deleted":
        return f"flow {flow} reads flow {upstream}, which is being deleted", []
    text = texts.get(upstream)
    if text is None and record is not None:
        revision = store.read(paths.revision(upstream, str(record.value.revision)))
        text = revision.value.effective if revision else None
    if not has_journals(text):
        return (
            f"flow {flow} reads flow {upstream}, which has no journals: use its source instead",
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
    """Return whether a flow with that text writes journals on nodes, not into Kafka."""
    try:
        spec = parse_flow(text or "")
    except SpecError:
        return False
    return bool(spec.pinned) and spec.journal.kafka is None
