"""Compares events with a case's expectations, by the columns that it names, in any order.
Expectations are YAML, whose scalars get the type of the column."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import yaml

from flumeng.agent.dryrun.cases import micros
from flumeng.config import document
from flumeng.events import identity, json_text
from flumeng.platform.options.problems import nearest

Row = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    line: int | None
    what: str


def compare(
    expected: Sequence[yaml.Node], events: Sequence[pa.RecordBatch], schema: pa.Schema
) -> list[Difference]:
    """Return how the events differ from the expected ones; empty when they match one to one."""
    wrong = [difference for node in expected for difference in _unfit(node, schema)]
    if wrong:
        return wrong
    shown = identity.without(schema)
    rows = [row for batch in events for row in batch.select(shown.names).to_pylist()]
    texts = [text for batch in events for text in json_text.rows(identity.strip(batch)).to_pylist()]
    pairs = _matched([[_fits(node, row, shown) for row in rows] for node in expected])
    missing = [node for number, node in enumerate(expected) if number not in pairs]
    others = [number for number in range(len(rows)) if number not in pairs.values()]
    return list(_differences(missing, others, rows, texts, shown))


def _unfit(node: yaml.Node, schema: pa.Schema) -> Iterator[Difference]:
    if not isinstance(node, yaml.MappingNode):
        text = f"expected columns with values, found {document.describe(node)}"
        yield Difference(document.line(node), text)
    for name, value in document.items(node).items():
        if name not in schema.names:
            hint = nearest(name, identity.without(schema).names)
            yield Difference(document.line(value), f"events have no column {name}; {hint}")


def _matched(fits: Sequence[Sequence[bool]]) -> dict[int, int]:
    """Return a maximum matching of expected to actual events (augmenting paths, as Kuhn)."""
    expected_of: dict[int, int] = {}

    def match(expected: int, tried: set[int]) -> bool:
        for row, fit in enumerate(fits[expected]):
            if fit and row not in tried:
                tried.add(row)
                if row not in expected_of or match(expected_of[row], tried):
                    expected_of[row] = expected
                    return True
        return False

    for expected in range(len(fits)):
        match(expected, set())
    return {expected: row for row, expected in expected_of.items()}


def _differences(
    missing: Sequence[yaml.Node],
    others: Sequence[int],
    rows: Sequence[Row],
    texts: Sequence[bytes],
    schema: pa.Schema,
) -> Iterator[Difference]:
    for node, number in zip(missing, others, strict=False):
        for name, value in document.items(node).items():
            kind, actual = schema.field(name).type, rows[number][name]
            if not matches(value, actual, kind):
                shown = json.dumps(_plain(actual), ensure_ascii=False)
                message = f"{name}: expected {_shown_node(value)}, found {shown}"
                yield Difference(document.line(value), f"event {number}: {message}")
    for node in missing[len(others) :]:
        yield Difference(document.line(node), f"missing event: {_shown_node(node)}")
    for number in others[len(missing) :]:
        text = texts[number].decode("utf-8", "replace")
        yield Difference(None, f"unexpected event {number}: {text}")


def _fits(node: yaml.Node, row: Row, schema: pa.Schema) -> bool:
    return all(
        matches(value, row[name], schema.field(name).type)
        for name, value in document.items(node).items()
    )


def matches(node: yaml.Node, value: Any, kind: pa.DataType) -> bool:
    if document.is_null(node) or value is None:
        return document.is_null(node) and value is None
    if pa.types.is_map(kind):
        entries = {str(key): entry for key, entry in value}
        return isinstance(node, yaml.MappingNode) and all(
            matches(part, entries.get(name), kind.item_type)
            for name, part in document.items(node).items()
        )
    if pa.types.is_struct(kind):
        return isinstance(node, yaml.MappingNode) and all(
            name in value and matches(part, value[name], kind.field(name).type)
            for name, part in document.items(node).items()
        )
    if pa.types.is_list(kind):
        return (
            isinstance(node, yaml.SequenceNode)
            and len(node.value) == len(value)
            and all(
                matches(part, item, kind.value_type)
                for part, item in zip(node.value, value, strict=True)
            )
        )
    return isinstance(node, yaml.ScalarNode) and _says(str(node.value), value)


def _says(text: str, value: Any) -> bool:
    try:
        if isinstance(value, bool):
            return text == ("true" if value else "false")
        if isinstance(value, int):
            return int(text) == value
        if isinstance(value, float):
            return float(text) == value or (math.isnan(value) and math.isnan(float(text)))
        if isinstance(value, Decimal):
            return Decimal(text) == value
        if isinstance(value, datetime):
            return micros(text) == micros(value.isoformat())
        if isinstance(value, date):
            return date.fromisoformat(text) == value
    except (ValueError, InvalidOperation):
        return False
    if isinstance(value, bytes):
        return text.encode() == value or text == value.decode("utf-8", "replace")
    return bool(text == value)


def _shown_node(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        pairs = document.items(node).items()
        return "{" + ", ".join(f"{name}: {_shown_node(value)}" for name, value in pairs) + "}"
    if isinstance(node, yaml.SequenceNode):
        return "[" + ", ".join(map(_shown_node, node.value)) + "]"
    return "null" if document.is_null(node) else str(node.value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {str(key): _plain(item) for key, item in value}
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value if isinstance(value, bool | int | float | str | None) else str(value)
