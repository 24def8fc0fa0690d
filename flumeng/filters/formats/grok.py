"""The format ``grok``: the first of several patterns that matches a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import because, misfit
from flumeng.events.byte_column import Mask, text
from flumeng.filters import ddl
from flumeng.filters.formats import Parsed
from flumeng.filters.formats.fields import Field, columns_of_fields, parsed_of, require_own_types
from flumeng.filters.formats.pairs import typed
from flumeng.filters.options import grok
from flumeng.filters.options.parse import Parse
from flumeng.platform.errors import UserError

_ABSENT = pa.scalar(None, pa.string())


@dataclass(frozen=True)
class GrokReader:
    patterns: tuple[tuple[str, tuple[str, ...]], ...]
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, options: Parse) -> GrokReader:
        more = options.patterns or {}
        try:
            written = [grok.written_out(it, more) for it in options.pattern_list]
            types = grok.all_types(options.pattern_list, more)
            for it in written:
                pc.extract_regex(pa.array([""]), it.regex)
        except (ValueError, pa.ArrowInvalid) as error:
            raise UserError(f"parse: {error}") from error
        fields = tuple(
            Field(name, (name,), ddl.type_of(kind), f"{name} is no {kind}")
            for name, kind in types.items()
        )
        require_own_types(pa.schema([(field.column, field.type) for field in fields]))
        tried = ((regex, it.fields) for it in written for regex in _from_the_beginning(it.regex))
        return cls(tuple(tried), fields)

    @property
    def columns(self) -> pa.Schema:
        return columns_of_fields(self.fields, None)

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        texts = text(bodies)
        captured = {field.column: pa.nulls(len(texts), pa.string()) for field in self.fields}
        waiting = np.ones(len(texts), np.bool_)
        for regex, names in self.patterns:
            if not waiting.any():
                break
            match = pc.extract_regex(_chosen(texts, waiting), regex)
            matched = match.is_valid().to_numpy(zero_copy_only=False)
            rows = waiting.copy()
            rows[waiting] = matched
            groups = [
                _chosen(pc.struct_field(match, index), matched) for index in range(len(names))
            ]
            for name, values in _by_column(names, groups).items():
                captured[name] = (
                    values
                    if rows.all()
                    else pc.replace_with_mask(captured[name], pa.array(rows), values)
                )
            waiting &= ~rows
        unread = because("grok: no match", waiting)
        misfits = pa.nulls(len(bodies), pa.string())
        columns = []
        for field in self.fields:
            column, failed = typed(captured[field.column], field.type)
            columns.append(column)
            if failed.any():
                why = misfit(f"grok: {field.misfit}", captured[field.column], failed)
                misfits = pc.coalesce(misfits, why)
        return parsed_of(list(captured), columns, unread, misfits)


def _from_the_beginning(regex: str) -> tuple[str, ...]:
    """Return the pattern anchored at the beginning, which is faster, and then the pattern."""
    return (regex,) if regex.startswith("^") else (f"^(?:{regex})", regex)


def _chosen(column: pa.Array, rows: Mask) -> pa.Array:
    return column if rows.all() else column.filter(pa.array(rows))


def _by_column(names: Sequence[str], groups: Sequence[pa.Array]) -> dict[str, pa.Array]:
    """Return the values of each column: its first group that is neither null nor empty."""
    by_column: dict[str, pa.Array] = {}
    for name, values in zip(names, groups, strict=True):
        given = values
        if pc.min(pc.binary_length(values)).as_py() == 0:
            given = pc.if_else(pc.equal(values, ""), _ABSENT, values)
        by_column[name] = pc.coalesce(by_column[name], given) if name in by_column else given
    return by_column
