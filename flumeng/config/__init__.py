"""The flow language: from the text of a flow file to a checked ``FlowSpec``. Pure: no files, no
network, no imports that only workers need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import yaml

from flumeng.config import document, guarantees, isolation
from flumeng.config.column_kinds import Columns
from flumeng.config.component import Component
from flumeng.config.decode import INVALID, Decoder
from flumeng.config.flow import (
    Batch,
    CollectPlace,
    FlowSpec,
    IngestPlace,
    JournalOptions,
    Place,
    Rollout,
    TaskRange,
)
from flumeng.config.partial_flow import readable_flow
from flumeng.platform.options.problems import Problem, SpecError

__all__ = [
    "Batch",
    "CollectPlace",
    "Component",
    "FlowSpec",
    "IngestPlace",
    "JournalOptions",
    "Place",
    "Problem",
    "Rollout",
    "SpecError",
    "TaskRange",
    "check_behind",
    "check_flow",
    "parse_flow",
    "parse_written",
    "parts_of",
]


def parse_flow(text: str) -> FlowSpec:
    """Return the flow without isolated parts (see ``parts_of``). Cached. Raises ``SpecError`` with
    every problem but those that only ``check_flow`` finds."""
    return _read(text)[1]


def parse_written(text: str) -> FlowSpec:
    """Return the flow with its isolated parts. Otherwise as ``parse_flow``."""
    return _read(text)[0]


def parts_of(text: str) -> dict[str, str]:
    """Return the texts of the flows that run the isolated parts, by name. Raises ``SpecError``."""
    return {part.flow: made for part, made in _read(text)[3].items()}


def check_flow(text: str, *, keep: bool = True) -> FlowSpec:
    """Parse and fully check a new flow, with expressions, columns of filters and sinks, and the
    time-outs of senders. Raises ``SpecError`` with all problems. Columns from another flow are
    checked in the composed flow, see ``flumeng.config.chain``, and by ``check_behind``. ``keep``:
    cache it; False for texts that are still being written."""
    try:
        written, spec, lines, parts = _read(text) if keep else _read.__wrapped__(text)
    except SpecError as error:
        decoder = _decoded(document.compose(text))[0]
        late = _of_columns(readable_flow(decoder), decoder.lines)
        raise SpecError({*error.problems, *late}) from error
    problems = [Problem(lines[path], path, message) for path, message in guarantees.too_late(spec)]
    problems += _of_columns(written, lines)
    if problems:
        raise SpecError(problems)
    for part, made in parts.items():
        try:
            check_flow(made)
        except SpecError as error:
            path = f"{part.path}.{isolation.ISOLATED}"
            raise SpecError(
                Problem(lines[path], path, f"as the flow {part.flow}: {p.path}: {p.message}")
                for p in error.problems
            ) from error
    return spec


def check_behind(text: str, columns: Columns) -> None:
    """Check a flow whose events another site filters: with the ``columns`` behind those filters.
    Raises ``SpecError`` with all problems."""
    written, _, lines, _ = _read(text)
    from flumeng.config import columns as checks  # noqa: PLC0415  # loads sqlglot

    problems = [Problem(_line(lines, at), at, why) for at, why in checks.check(written, columns)]
    if problems:
        raise SpecError(problems)


def _of_columns(written: FlowSpec, lines: Mapping[str, int]) -> list[Problem]:
    behind_others = any(part.options.filtered_by for part in written.sources)
    if behind_others or not (written.filters or written.branches):
        return []
    from flumeng.config import columns  # noqa: PLC0415  # loads sqlglot

    return [Problem(_line(lines, path), path, message) for path, message in columns.check(written)]


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[FlowSpec, FlowSpec, Mapping[str, int], Mapping[isolation.Part, str]]:
    """Return the flow as written and as run, its line numbers, and the texts of isolated parts."""
    root = document.compose(text)
    decoder, written = _decoded(root)
    together = [
        Problem(decoder.lines[path], path, message)
        for path, message in guarantees.check(decoder.parts)
    ]
    if written is not None:
        together += [
            Problem(decoder.lines[path], path, message)
            for path, message in isolation.problems(written)
        ]
    if written is None or together:
        raise SpecError(decoder.problems + together)
    parts = isolation.parts(written)
    if not parts:
        return written, written, decoder.lines, {}
    spec = parse_flow(isolation.kept_text(root, written))
    texts = {part: isolation.part_text(root, written, part) for part in parts}
    return written, spec, decoder.lines, texts


def _decoded(root: yaml.Node) -> tuple[Decoder, FlowSpec | None]:
    decoder = Decoder()
    written = decoder.mapping(FlowSpec, root, "")
    assert written is INVALID or isinstance(written, FlowSpec)
    return decoder, None if written is INVALID else written


def _line(lines: Mapping[str, int], path: str) -> int:
    """Return the line of ``path``; an option may be written with or without its name."""
    named = path.replace("select[", "select.expressions[").replace("_of[", "_of.sinks[")
    return lines.get(path) or lines.get(named) or lines[path.partition("[")[0]]
