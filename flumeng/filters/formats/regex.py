"""The format ``regex`` (RE2): a text column for each named group."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import because
from flumeng.events.byte_column import text
from flumeng.filters.formats import Parsed
from flumeng.filters.options.parse import Parse
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class RegexReader:
    pattern: str

    @classmethod
    def of(cls, options: Parse) -> RegexReader:
        (pattern,) = options.pattern_list
        reader = cls(pattern)
        try:
            assert reader.columns
        except pa.ArrowInvalid as error:
            raise UserError(f"parse: {error}") from error
        return reader

    @property
    def columns(self) -> pa.Schema:
        return pa.schema(list(pc.extract_regex(pa.array([""]), self.pattern).type))

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        match = pc.extract_regex(text(bodies), self.pattern)
        matched = match.is_valid()
        columns = [
            pc.if_else(matched, pc.struct_field(match, field.name), None) for field in match.type
        ]
        failed = ~matched.to_numpy(zero_copy_only=False)
        return Parsed(columns, because("regex: no match", failed))
