"""The text of a replay: that of its flow, which reads dead letters and ends."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import yaml

from flumeng.config import FlowSpec, document, isolation, nodes, parse_flow
from flumeng.config.component import SinkOptions
from flumeng.config.kinds import MESSAGE
from flumeng.platform.errors import UserError
from flumeng.platform.options.locations import InStore

SOURCE, FILES = "letters", "files"
OF_SOURCES = ("journal", "multiline")
"""What a flow says of how its sources are read, beside them: a letter is a whole event."""
REACHED = ("path", "shared", "credentials")
"""What the source has of the sink for dead letters, word for word."""


def require_files(flow: str, spec: FlowSpec) -> InStore:
    """The options of the flow's sink for dead letters, whose files can be read back. Raises
    ``UserError`` for a flow that has another one, or none."""
    part = spec.dead_letters
    if part is None:
        raise UserError(
            f"flow {flow} has no dead letters: give it `dead_letters: {{files: {{path: ...}}}}`"
        )
    options: SinkOptions = part.options
    if options.letter_files is None:
        raise UserError(
            f"the dead letters of flow {flow} go to {part.name}: read them there. Only those of "
            "`files` (parquet or json) are listed, shown, replayed and purged here"
        )
    if options.unreadable_form is not None:
        raise UserError(
            f"the dead letters of flow {flow} are {options.unreadable_form} files: read them with "
            "what reads those. Only parquet and json with nested columns are listed, shown, "
            "replayed and purged here"
        )
    return options.letter_files


def replay_text(flow: str, current: str, name: str, replay: str, rows: Sequence[int]) -> str:
    """The flow of this text as ``name``, with a source that reads the list ``replay`` of its dead
    letters, whose parts have so many ``rows``. Nothing in it is isolated. Comments are lost.

    Raises ``SpecError`` for a text that is no flow's, ``UserError`` as ``require_files``.
    """
    spec = parse_flow(current)
    require_files(flow, spec)
    root = isolation.together(document.compose(current))
    root.value = [pair for pair in root.value if pair[0].value not in OF_SOURCES]
    sink = document.items(document.items(root)["dead_letters"])[FILES]
    options = nodes.mapping(deepcopy(pair) for pair in sink.value if pair[0].value in REACHED)
    nodes.put(options, "of", nodes.text(flow))
    nodes.put(options, "replay", nodes.text(replay))
    nodes.put(options, "rows", nodes.listed(map(nodes.number, rows)))
    if any(part.options.read_columns.keys() >= MESSAGE.keys() for part in spec.sources):
        nodes.put(options, "messages", nodes.true())
    source = nodes.mapping([(nodes.text(SOURCE), options)])
    nodes.put(root, "flow", nodes.text(name))
    nodes.put(root, "sources", nodes.listed([source]))
    return str(yaml.serialize(root))
