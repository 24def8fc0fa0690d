"""The texts of backfills and replays: the text of their flow with other, bounded sources."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import TypeVar

import yaml

from flumeng.config import FlowSpec, document, isolation, parse_flow
from flumeng.config.column_kinds import MESSAGE
from flumeng.config.component import Component, OffsetBounds, SinkOptions, SourceOptions, TimeBounds
from flumeng.platform.errors import UserError
from flumeng.platform.options.locations import InStore

SOURCE, FILES = "letters", "files"
OF_SOURCES = ("journal", "multiline")
"""Options about sources. A replay lacks them, since a dead letter is a whole event."""
REACHED = ("path", "shared", "credentials")
"""Options of the sink for dead letters that are copied to the source that reads them."""


def require_files(flow: str, spec: FlowSpec) -> InStore:
    """Return the place of the dead letters. Raises ``UserError`` if they cannot be read back."""
    part = spec.dead_letters
    if part is None:
        raise UserError(
            f"flow {flow} has no dead letters: give it `dead_letters: {{files: {{path: ...}}}}`"
        )
    options: SinkOptions = part.options
    if options.dead_letter_files is None:
        raise UserError(
            f"the dead letters of flow {flow} go to {part.name}: read them there. Only those of "
            "`files` (parquet or json) are listed, shown, replayed and purged here"
        )
    if options.unreadable_form is not None:
        raise UserError(
            f"the dead letters of flow {flow} are {options.unreadable_form} files: read them with "
            "a tool for that format. Only parquet and json with nested columns are listed, shown, "
            "replayed and purged here"
        )
    return options.dead_letter_files


def replay_text(flow: str, current: str, name: str, replay: str, rows: Sequence[int]) -> str:
    """Return the text of a flow ``name`` that reads the list ``replay`` of this flow's dead
    letters, ``rows`` of each part. Drops isolation and comments. Raises SpecError, UserError."""
    spec = parse_flow(current)
    require_files(flow, spec)
    root = isolation.together(document.compose(current))
    root.value = [pair for pair in root.value if pair[0].value not in OF_SOURCES]
    sink = document.items(document.items(root)["dead_letters"])[FILES]
    options = document.mapping_node(
        deepcopy(pair) for pair in sink.value if pair[0].value in REACHED
    )
    document.put(options, "of", document.scalar(flow))
    document.put(options, "replay", document.scalar(replay))
    document.put(options, "rows", document.list_node(map(document.scalar, rows)))
    if any(part.options.read_columns.keys() >= MESSAGE.keys() for part in spec.sources):
        document.put(options, "messages", document.scalar(True))
    source = document.mapping_node([(document.scalar(SOURCE), options)])
    document.put(root, "flow", document.scalar(name))
    document.put(root, "sources", document.list_node([source]))
    return str(yaml.serialize(root))


Bounds = type[OffsetBounds] | type[TimeBounds]
BoundsT = TypeVar("BoundsT", OffsetBounds, TimeBounds)


def bounded_by(spec: FlowSpec, bounds: Bounds) -> list[Component[SourceOptions]]:
    """Return the flow's sources that a backfill can read with such bounds."""
    return [source for source in spec.sources if isinstance(source.options.bounds, bounds)]


def require_offsets(flow: str, spec: FlowSpec) -> None:
    """Raise ``UserError`` for a flow without a source that keeps events by offsets."""
    if not bounded_by(spec, OffsetBounds):
        raise UserError(
            f"flow {flow} reads its own journals, which keep events for `journal.retain_seconds`: "
            f"pause it, and deliver the kept events again with `flumeng flow reset {flow}`"
        )


def offsets_text(text: str, name: str, bounds: Mapping[str, tuple[int, int]]) -> str:
    """Return the text of a flow ``name`` with only the sources bounded by offsets. ``bounds``:
    first and end offset by partition, such as ``orders.3``. Drops comments. Raises SpecError."""
    root, sources = _with_sources(text, name, OffsetBounds)
    for names, options in sources:
        _remove(options, (names.start, names.end, *names.replaced))
        for number, key in enumerate((names.start, names.end)):
            pairs = [
                (document.scalar(partition), document.scalar(ends[number]))
                for partition, ends in bounds.items()
            ]
            document.put(options, key, document.mapping_node(pairs))
    return str(yaml.serialize(root))


def times_text(text: str, name: str, paths: Collection[str], start: str, end: str) -> str:
    """Return the text of a flow ``name`` that has only the sources bounded by write time in
    [``start``, ``end``); an empty ``start`` is open. The sources leave the objects that they read
    unchanged. ``paths``, if any, replace the sources' paths. Comments are lost. Raises
    ``SpecError``."""
    root, sources = _with_sources(text, name, TimeBounds)
    for names, options in sources:
        _remove(options, names.replaced)
        if paths:
            document.put(options, names.paths, document.list_node(map(document.scalar, paths)))
        if start:
            document.put(options, names.start, document.scalar(start))
        document.put(options, names.end, document.scalar(end))
    return str(yaml.serialize(root))


def _with_sources(
    text: str, name: str, kind: type[BoundsT]
) -> tuple[yaml.Node, list[tuple[BoundsT, yaml.Node]]]:
    sources = parse_flow(text).sources
    root = document.compose(text)
    document.put(root, "flow", document.scalar(name))
    listed = document.items(root)["sources"]
    kept = [
        (item, part.name, part.options.bounds)
        for item, part in zip(listed.value, sources, strict=True)
        if isinstance(part.options.bounds, kind)
    ]
    listed.value = [item for item, _, _ in kept]
    return root, [(bounds, document.items(item)[part]) for item, part, bounds in kept]


def _remove(options: yaml.Node, names: Collection[str]) -> None:
    options.value = [pair for pair in options.value if pair[0].value not in names]
