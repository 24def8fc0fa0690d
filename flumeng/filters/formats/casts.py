"""Casts texts to types strictly: no ``0x1F``, no overflow, white space only around timestamps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import ByteColumn, Bytes, Mask, Positions
from flumeng.filters import iso8601, timestamps

_INTEGER = "^[+-]?[0-9]{1,38}$"
_FRACTION = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_WORDS = {"nan": "nan", "inf": "inf", "infinity": "inf", "-inf": "-inf", "-infinity": "-inf"}
_MOST_DIGITS = 18
"""Numbers of up to 18 digits always fit 64 bits."""


def cast(texts: pa.Array, to: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return the values, and which of ``texts`` do not have the type; these and nulls are null."""
    if pa.types.is_string(to):
        return texts, np.zeros(len(texts), np.bool_)
    if pa.types.is_binary(to):
        return texts.cast(to), np.zeros(len(texts), np.bool_)
    values = _values(texts, to)
    if not values.null_count:
        return values, np.zeros(len(texts), np.bool_)
    failed: Mask = (values.is_null().to_numpy(False)) & texts.is_valid().to_numpy(False)
    return values, failed


def _values(texts: pa.Array, to: pa.DataType) -> pa.Array:
    if pa.types.is_integer(to):
        return _integers(texts, to)
    if pa.types.is_floating(to):
        return _fractions(texts, to)
    if pa.types.is_decimal(to):
        return _decimals(texts, to)
    if pa.types.is_boolean(to):
        word_index = pc.index_in(pc.utf8_lower(texts), value_set=pa.array(["false", "true"]))
        return pc.equal(pc.if_else(texts.is_valid(), word_index, None), 1)
    if pa.types.is_timestamp(to) and (alike := _moments_alike(texts, to)) is not None:
        return alike
    read = days if pa.types.is_date(to) else moments
    values, valid = read(pc.fill_null(texts, ""))
    whole = pa.int32() if pa.types.is_date(to) else pa.int64()
    return pa.array(values, mask=~valid).cast(whole).cast(to)


def _integers(texts: pa.Array, to: pa.DataType) -> pa.Array:
    if not pc.all(pc.ascii_is_decimal(texts)).as_py():
        texts = _only(texts, _INTEGER)
        if pc.any(pc.starts_with(texts, "+")).as_py():
            texts = pc.utf8_ltrim(texts, "+")
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= _MOST_DIGITS:
        try:
            return texts.cast(to)
        except pa.ArrowInvalid:
            wide = texts.cast(pa.int64())
    else:
        wide = _only(texts, _INTEGER).cast(pa.decimal128(38, 0))
    bits = to.bit_width - 1
    fits = pc.and_(pc.less_equal(wide, 2**bits - 1), pc.greater_equal(wide, -(2**bits)))
    return pc.if_else(fits, wide, pa.scalar(None, wide.type)).cast(to)


def _fractions(texts: pa.Array, to: pa.DataType) -> pa.Array:
    try:
        return texts.cast(to)
    except pa.ArrowInvalid:
        lower = pc.utf8_lower(texts)
        words = pa.array(list(_WORDS.values())).take(
            pc.index_in(pc.utf8_ltrim(lower, "+"), value_set=pa.array(list(_WORDS)))
        )
        numbers = pc.utf8_ltrim(_only(lower, _FRACTION), "+")
        return pc.coalesce(numbers, words).cast(to)


def _decimals(texts: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast texts to decimals, rounding half away from zero as Spark does."""
    texts = pc.utf8_ltrim(_only(texts, _FRACTION), "+")
    try:
        return _rounded(texts, to)
    except pa.ArrowInvalid:
        rows = [texts.slice(row, 1) for row in range(len(texts))]
        return pa.concat_arrays([_one_decimal(row, to) for row in rows])


def _rounded(texts: pa.Array, to: pa.DataType) -> pa.Array:
    wide = texts.cast(pa.decimal256(76, 38))
    return pc.round(wide, to.scale, "half_towards_infinity").cast(to)


def _one_decimal(text: pa.Array, to: pa.DataType) -> pa.Array:
    try:
        return _rounded(text, to)
    except pa.ArrowInvalid:
        return pa.nulls(1, to)


def _only(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(texts, pattern), texts, pa.scalar(None, pa.string()))


_FOLDED_ROWS = 64
_HOUR_WIDTH, _DAY_WIDTH = len("2026-11-09T10"), len("2026-11-09")


def _moments_alike(texts: pa.Array, to: pa.DataType) -> pa.Array | None:
    """Read times by Arrow's fast cast if all have digits and signs at the places of the first one.
    Return None for others: Arrow is slow at errors, and reads hours alone and the year 0."""
    flat = ByteColumn(texts.drop_null().view(pa.binary()))
    widths = flat.ends - flat.starts
    if not len(flat) or widths[0] <= _HOUR_WIDTH or (widths != widths[0]).any():
        return None
    rows = flat.data[flat.starts[0] :].reshape(len(flat), widths[0])
    least, most = _extremes(np.minimum, rows), _extremes(np.maximum, rows)
    alike = (least == most) | ((least >= ord("0")) & (most <= ord("9")))
    if rows[0, _HOUR_WIDTH] != ord(":") or not alike.all():
        return None
    try:
        texts.drop_null().slice(0, 1).cast(to)
        moments = texts.cast(to)
    except pa.ArrowInvalid:
        return None
    in_calendar = timestamps.in_calendar(moments.view(pa.int64()).drop_null().to_numpy())
    return moments if in_calendar.all() else None


def _extremes(least_or_most: np.ufunc, rows: Bytes) -> Bytes:
    """Return the extreme byte of each matrix column. Folded rows are long, which numpy needs."""
    whole = len(rows) // _FOLDED_ROWS * _FOLDED_ROWS
    if whole:
        folded = least_or_most.reduce(rows[:whole].reshape(-1, _FOLDED_ROWS * rows.shape[1]))
        rows = np.concatenate([folded.reshape(_FOLDED_ROWS, -1), rows[whole:]])
    extremes: Bytes = least_or_most.reduce(rows)
    return extremes


def moments(texts: pa.Array) -> tuple[Positions, Mask]:
    """Return microseconds since the epoch (UTC without a zone), and whether a text is ISO 8601."""
    times = iso8601.read_texts(texts)
    return times.micros, times.valid


def days(texts: pa.Array) -> tuple[Positions, Mask]:
    """Return days since the epoch, and whether each text is exactly a date."""
    flat = ByteColumn(texts.cast(pa.binary()))
    window = flat.window(flat.starts, _DAY_WIDTH, flat.ends)
    digits = (window - np.uint8(ord("0"))).astype(np.int64)
    valid = (flat.ends - flat.starts == _DAY_WIDTH) & (window[4] == ord("-"))
    valid &= (window[7] == ord("-")) & (digits[[0, 1, 2, 3, 5, 6, 8, 9]].max(axis=0) <= 9)
    year = digits[0] * 1000 + digits[1] * 100 + digits[2] * 10 + digits[3]
    month, day = digits[5] * 10 + digits[6], digits[8] * 10 + digits[9]
    day_numbers, day_valid = timestamps.days_since_epoch(year, month, day)
    return day_numbers, valid & day_valid
