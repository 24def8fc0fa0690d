"""CAST of texts into whole numbers, exactly as Spark SQL does it without ANSI mode.

The rules are those of Spark's ``UTF8String.toInt`` and ``toLong``: spaces and control characters
around the number do not count, a sign may stand before it, digits behind a point are cut off, and
anything else, or a number that does not fit, is null.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_NUMBER = (
    r"^[\x00-\x20\x7f]*(?P<sign>[+-]?)(?P<zeros>0*)(?P<digits>[0-9]*)(?P<point>\.?)[0-9]*"
    r"[\x00-\x20\x7f]*$"
)
_MOST_DIGITS = 19
"""More digits are no bigint; so many fit into an unsigned one."""


def whole_numbers(texts: Any, kind: pa.DataType) -> Any:
    """Texts, an array or scalar of strings, as int32 or int64 ``kind``; null where Spark has
    null."""
    parts = pc.extract_regex(texts, pattern=_NUMBER)
    sign, zeros, digits, point = (
        pc.struct_field(parts, [name]) for name in ("sign", "zeros", "digits", "point")
    )
    some = pc.not_equal(pc.binary_join_element_wise(zeros, digits, point, ""), "")
    short = pc.less_equal(pc.binary_length(digits), _MOST_DIGITS)
    plain = pc.if_else(pc.and_(short, pc.not_equal(digits, "")), digits, "0")
    negative = pc.equal(sign, "-")
    most = 2 ** (kind.bit_width - 1)
    limit = pc.if_else(negative, pa.scalar(most, pa.uint64()), pa.scalar(most - 1, pa.uint64()))
    fits = pc.and_(pc.and_(some, short), pc.less_equal(pc.cast(plain, pa.uint64()), limit))
    signed = pc.binary_join_element_wise(pc.if_else(negative, "-", ""), plain, "")
    return pc.cast(pc.if_else(fits, signed, pa.scalar(None, pa.string())), kind)
