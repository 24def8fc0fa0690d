"""The formats ``key_value``, pairs such as ``a=1 b="x y"``, and ``logfmt``, also with lone names.

A quote opens a value, a name or a word at its beginning, and closes it at its end. The few rows
with other quotes, and records of auditd (pairs in single quotes, or the separator GROUP), are read
one by one and rewritten with all values in quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import because
from flumeng.events.byte_column import ByteColumn, Bytes, Mask, Positions, following
from flumeng.filters.formats import Parsed
from flumeng.filters.formats.escapes import behind_backslash, unescape
from flumeng.filters.formats.fields import Field, columns_of_fields, fields_of, parsed_of
from flumeng.filters.formats.json_values import in_one
from flumeng.filters.formats.pairs import Pairs
from flumeng.filters.options.parse import Parse

WHITE_SPACE = " \t\r\n"
GROUP = "\x1d"
SPACES = b" \t"
NAMED = {"space": " ", "tab": "\t"}
_MOST_SPACES = 8
_QUOTED = rb'"(?:[^"\\]|\\.)*"'
_IN_QUOTES = re.compile(_QUOTED, re.DOTALL)
_SINGLE = rb"'[^']*'"
_IN_SINGLE_QUOTES = re.compile(_SINGLE)
_GO_ESCAPE = re.compile(
    rb"\\(?:x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})|U(?P<long>[0-9a-fA-F]{8})"
    rb"|(?P<short>u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*)|(?P<letter>[abfnrtv\\'\"/]))"
)
_GO_LETTERS = dict(zip((b"%c" % letter for letter in b"abfnrtv\\'\"/"),
    (b"%c" % byte for byte in b"\a\b\f\n\r\t\v\\'\"/"), strict=True))  # fmt: skip
_LAST_CHARACTER = 0x110000
_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_text = msgspec.json.Decoder(str).decode


def unescape_as_json(texts: pa.Array) -> pa.Array:
    """Decode all escapes of JSON and Go; in texts with others only quotes and backslashes."""
    written = pc.binary_join_element_wise('"', texts, '"', "")
    try:
        return pa.array(_decode_texts(b"[" + in_one(written, b",") + b"]"), pa.string())
    except msgspec.DecodeError:
        decoded = [_decoded(text) for text in written.to_pylist()]
        others = [number for number, text in enumerate(decoded) if text is None]
        rare = texts.take(pa.array(others, pa.int64()))
        pairs = zip(others, rare.to_pylist(), unescape(rare).to_pylist(), strict=True)
        for number, text, other in pairs:
            decoded[number] = _unescaped_as_go(text) or other
        return pa.array(decoded, pa.string())


def _decoded(written: str) -> str | None:
    try:
        return _decode_text(written)
    except msgspec.DecodeError:
        return None


def _unescaped_as_go(written: str) -> str | None:
    if "\\" in _GO_ESCAPE.sub(b"", written.encode()).decode():
        return None
    return _GO_ESCAPE.sub(_go_escape, written.encode()).decode("utf-8", "replace")


def _go_escape(escape: re.Match[bytes]) -> bytes:
    if byte := escape["hex"]:
        return bytes([int(byte, 16)])
    if byte := escape["octal"]:
        return bytes([int(byte, 8)])
    if code := escape["long"]:
        number = int(code, 16)
        return chr(number).encode("utf-8", "replace") if number < _LAST_CHARACTER else escape[0]
    if escape["short"]:
        try:
            return _decode_text(b'"' + escape[0] + b'"').encode()
        except msgspec.DecodeError:
            return "\ufffd".encode()
    return _GO_LETTERS[escape["letter"]]


@dataclass(frozen=True)
class PairsReader:
    form: str
    fields: tuple[Field, ...]
    into: str | None
    separators: str
    """Characters between pairs; unless WHITE_SPACE, spaces around names and values are ignored."""
    equals: str
    bare: bool
    """Whether a word alone is a name with the value ``true``."""

    @classmethod
    def of(cls, options: Parse) -> PairsReader:
        between = options.pair_separator or WHITE_SPACE
        equals = options.value_separator or "="
        return cls(
            "key_value",
            fields_of(options),
            options.into,
            NAMED.get(between, between),
            NAMED.get(equals, equals),
            bare=False,
        )

    @classmethod
    def of_logfmt(cls, options: Parse) -> PairsReader:
        return cls("logfmt", fields_of(options), options.into, WHITE_SPACE, "=", bare=True)

    @property
    def columns(self) -> pa.Schema:
        return columns_of_fields(self.fields, self.into)

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        lines = _Lines(self, ByteColumn(bodies))
        irregular = lines.irregular()
        if irregular.any():
            mask = pa.array(irregular)
            rewritten = [self._regular(body) for body in bodies.filter(mask).to_pylist()]
            bodies = pc.replace_with_mask(bodies, mask, pa.array(rewritten, pa.binary()))
            lines = _Lines(self, ByteColumn(bodies))
        pairs = lines.pairs()
        columns, misfits = pairs.columns(self.form, self.fields, self.into)
        unread = because(f"{self.form}: no pair", ~lines.paired)
        names = [*(field.column for field in self.fields), self.into]
        return parsed_of(names, columns, unread, misfits)

    def _regular(self, body: bytes) -> bytes:
        between, equals = self.separators[0].encode(), self.equals.encode()
        parts = []
        for name, value in self.scanned(body):
            parts.append(_in_quotes(name) + (b"" if value is None else equals + _in_quotes(value)))
        return between.join(parts)

    def scanned(self, body: bytes) -> list[tuple[bytes, bytes | None]]:
        pairs: list[tuple[bytes, bytes | None]] = []
        for match in self._scanner.finditer(body):
            name, word = match["name"], match["quoted"] or match["word"]
            if name is not None:
                value = match["value"].rstrip(SPACES)
                single = not self.bare and _IN_SINGLE_QUOTES.fullmatch(value) is not None
                pairs.append((_bare(name.rstrip(SPACES)), _bare(value[1:-1] if single else value)))
                if single and self._begins_with_pair(value[1:-1]):
                    pairs += self.scanned(value[1:-1])
            elif self.bare and word and not word.startswith(self.equals.encode()):
                pairs.append((_bare(word), None))
        return pairs

    def _begins_with_pair(self, text: bytes) -> bool:
        first = self._scanner.match(text)
        return first is not None and first["name"] is not None

    @cached_property
    def _scanner(self) -> re.Pattern[bytes]:
        """The pattern of a pair or word with the spaces after names and values. It matches at every
        position, so that scanning takes linear time."""
        space = b"" if self.separators == WHITE_SPACE else b"[" + SPACES + b"]*"
        first = space + b"+" if space else b""
        grouped = not self.bare and self.separators == WHITE_SPACE
        separators = self.separators + (GROUP if grouped else "")
        between = b"[" + re.escape(separators.encode()) + b"]"
        other = b"[^" + re.escape(separators.encode()) + b"]"
        equals = re.escape(self.equals.encode())
        end = space + rb"(?=" + between + rb"|\Z)"
        name = b"[^" + re.escape((separators + self.equals).encode()) + b"]++"
        single = rb"" if self.bare else rb"|" + _SINGLE + rb"(?=" + end + rb")"
        return re.compile(
            first + rb"(?:(?P<quoted>" + _QUOTED + rb")" + end
            + rb"|(?P<name>" + _QUOTED + rb"(?=" + space + equals + rb")|" + name + b")"
            + space + equals + space
            + rb"(?P<value>" + _QUOTED + rb"(?=" + end + rb")" + single + rb"|" + other + rb"*)"
            + rb"|(?P<word>" + other + rb"*))",
            re.DOTALL,
        )  # fmt: skip


def _bare(text: bytes) -> bytes:
    """Remove the quotes around a text; in a text without them escape quotes and backslashes."""
    if _IN_QUOTES.fullmatch(text):
        return text[1:-1]
    return text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _in_quotes(text: bytes) -> bytes:
    return b'"' + text + b'"'


class _Lines:
    """The tokens between separators in a column of bodies, with the quotes in each token."""

    def __init__(self, reader: PairsReader, flat: ByteColumn) -> None:
        self.reader = reader
        self.flat = flat
        quote, equals = ord('"'), ord(reader.equals)
        marks = flat.find(*reader.separators, reader.equals, '"')
        kinds = flat.data[marks]
        is_quote = kinds == quote
        if is_quote.any():
            is_quote[is_quote] = ~behind_backslash(flat, marks[is_quote])
        first_of_row = np.searchsorted(marks, flat.starts)
        rows = np.repeat(
            np.arange(len(flat), dtype=np.int32), np.diff(first_of_row, append=len(marks))
        )
        outside = self._are_outside(is_quote, first_of_row, rows)
        is_break = outside & (kinds != quote) & (kinds != equals)
        breaks = np.append(np.int32(0), np.cumsum(is_break, dtype=np.int32))
        self._set_bounds(marks[np.flatnonzero(is_break)], breaks[first_of_row])
        self.marks = self.ends.copy()
        signs = np.flatnonzero(outside & (kinds == equals))[::-1]
        self.marks[breaks[signs] + rows[signs]] = marks[signs]
        chosen = np.flatnonzero(is_quote)
        self.quotes, self.opening = marks[chosen], outside[chosen]
        self.quote_rows, self.quote_tokens = rows[chosen], breaks[chosen] + rows[chosen]

    @staticmethod
    def _are_outside(is_quote: Mask, first_of_row: Positions, rows: npt.NDArray[np.int32]) -> Mask:
        odd = np.append(np.uint8(0), np.cumsum(is_quote, dtype=np.uint8) & np.uint8(1))
        odd_of_row = odd[first_of_row]
        inside = odd[:-1]
        if odd_of_row.any():
            inside = inside ^ odd_of_row[rows]
        outside: Mask = inside == 0
        return outside

    def _set_bounds(self, breaks: Positions, before_row: npt.NDArray[np.int32]) -> None:
        flat = self.flat
        behind_row = np.append(before_row, np.int32(len(breaks)))[1:]
        self.starts = np.insert(breaks + 1, before_row, flat.starts)
        self.ends = np.insert(breaks, behind_row, flat.ends)
        self.rows = np.repeat(np.arange(len(flat)), behind_row - before_row + 1)
        if self.reader.separators != WHITE_SPACE:
            self.starts, self.ends = self._trimmed(self.starts, self.ends)

    def _trimmed(self, starts: Positions, ends: Positions) -> tuple[Positions, Positions]:
        for _ in range(_MOST_SPACES):
            spaced = _is_space(self.flat.at(starts, ends))
            behind = _is_space(self.flat.at(ends - 1, ends)) & (ends > starts)
            if not (spaced.any() or behind.any()):
                return starts, ends
            starts = starts + spaced
            ends = np.maximum(ends - behind, starts)
        others = np.flatnonzero(~_is_space(self.flat.data))
        starts = following(others, starts, ends)
        last = np.append(others, -1)[np.searchsorted(others, ends) - 1]
        return starts, np.maximum(last + 1, starts)

    def irregular(self) -> Mask:
        """Return the rows of auditd, and those with an unpaired quote or one inside a token."""
        mask = np.zeros(len(self.flat), np.bool_)
        if not self.reader.bare:
            mask[self._rows_of_auditd()] = True
        if not len(self.quotes):
            return mask
        odd = np.bincount(self.quote_rows, minlength=len(mask)) % 2 == 1
        paired = ~odd[self.quote_rows]
        chosen = self.opening & paired
        opens, closes = self.quotes[chosen], self.quotes[~self.opening & paired]
        tokens = self.quote_tokens[chosen]
        marks, ends = self.marks[tokens], self.ends[tokens]
        values, _ = self._value_bounds(marks, ends)
        valued = (values == opens) & (marks < ends)
        ended = ends == closes + 1
        named = self._name_ends(self.starts[tokens], marks) == closes + 1
        regular = ((self.starts[tokens] == opens) & (ended | named)) | (valued & ended)
        mask[self.quote_rows[chosen][~regular]] = True
        mask |= odd
        return mask

    def _rows_of_auditd(self) -> Positions:
        flat = self.flat
        places = flat.find("'", GROUP)
        before = flat.data[places - 1]
        opens = before == ord(self.reader.equals)
        if self.reader.separators != WHITE_SPACE:
            opens |= _is_space(before)
        chosen = places[opens | (flat.data[places] != ord("'"))]
        rows: Positions = np.searchsorted(flat.ends, chosen, side="right")
        return rows

    def pairs(self) -> Pairs:
        taken = (self.marks < self.ends) & (self.marks > self.starts)
        self.paired = np.zeros(len(self.flat), np.bool_)
        self.paired[self.rows[taken]] = True
        if self.reader.bare:
            taken |= (self.marks == self.ends) & (self.ends > self.starts)
        if self.reader.into is None:
            taken &= self._may_be_requested()
        tokens = np.flatnonzero(taken)
        starts, marks, ends = self.starts[tokens], self.marks[tokens], self.ends[tokens]
        bare = marks == ends
        key_starts, key_ends, escaped_keys = self._within(starts, self._name_ends(starts, marks))
        starts, ends = self._value_bounds(marks, ends)
        starts, ends, escaped = self._within(starts, np.maximum(starts, ends))
        convert = unescape_as_json if self.reader.form == "logfmt" else unescape
        return Pairs(
            self.flat, self.rows[tokens], key_starts, key_ends, starts, ends, bare,
            escaped & ~bare, escaped_keys, convert,
        )  # fmt: skip

    def _may_be_requested(self) -> Mask:
        lengths = self._name_ends(self.starts, self.marks) - self.starts
        requested: Mask = self.flat.at(self.starts, self.ends) == ord('"')
        for length in {len(field.path[0].encode()) for field in self.reader.fields}:
            requested |= lengths == length
        return requested

    def _name_ends(self, starts: Positions, marks: Positions) -> Positions:
        return marks if self.reader.separators == WHITE_SPACE else self._trimmed(starts, marks)[1]

    def _value_bounds(self, marks: Positions, ends: Positions) -> tuple[Positions, Positions]:
        if self.reader.separators == WHITE_SPACE:
            return marks + 1, ends
        return self._trimmed(np.minimum(marks + 1, ends), ends)[0], ends

    def _within(self, starts: Positions, ends: Positions) -> tuple[Positions, Positions, Mask]:
        """Return the bounds without the enclosing quotes, and whether a backslash is inside."""
        escaped = np.zeros(len(starts), np.bool_)
        if not len(self.quotes):
            return starts, ends, escaped
        quoted = (self.flat.at(starts, ends) == ord('"')) & (ends - starts > 1)
        within = np.flatnonzero(quoted)
        quoted[within] = self.flat.data[ends[within] - 1] == ord('"')
        within = within[quoted[within]]
        backslashes = self.flat.find("\\")
        if len(backslashes):
            inside = following(backslashes, starts[within], ends[within])
            escaped[within] = inside < ends[within]
        return starts + quoted, ends - quoted, escaped


def _is_space(characters: Bytes) -> Mask:
    spaces: Mask = (characters == ord(" ")) | (characters == ord("\t"))
    return spaces
