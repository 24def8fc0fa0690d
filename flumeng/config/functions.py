"""The allowed functions of Spark SQL: pure, bounded in time and space. Everything else is refused,
so a function of a newer Spark is refused until reviewed. A listed function is deterministic, reads
only its arguments, does not raise for any event, and grows them at most by ``growth``. Aggregates
hold a bounded state for each group. So there is no ``collect_list``, ``listagg`` or ``percentile``,
and no ``first``, since rows have no order. Sums of fractions may differ in their last digits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from flumeng.config import sql_patterns

TEXT, BINARY, INTEGER, FRACTION, BOOLEAN = "string", "binary", "integer", "fraction", "boolean"
TIMESTAMP, DATE, VOID = "timestamp", "date", "void"
ATOMIC = frozenset({TEXT, BINARY, INTEGER, FRACTION, BOOLEAN, TIMESTAMP, DATE, VOID})
PADDED_CHARACTERS = 1000
DAYS = 100_000
TIME_PATTERN = re.compile(
    r"(?:y{1,4}|M{1,4}|d{1,2}|D{1,3}|H{1,2}|h{1,2}|m{1,2}|s{1,2}|S{1,9}|a|E{1,4}|X{1,3}"
    r"|'[^'\"]*'|[ _.,:;/T\[\]\-])+"
)
URL_PARTS = ("HOST", "PATH", "QUERY", "REF", "PROTOCOL", "FILE", "AUTHORITY", "USERINFO")

Literal = str | int | None
"""The value of a constant text or whole number; None for any other argument."""

_ACCEPTED: Mapping[str, frozenset[str]] = {
    "S": ATOMIC,
    "U": ATOMIC - {BINARY},
    "s": frozenset({TEXT}),
    "N": frozenset({INTEGER, FRACTION, TEXT, VOID}),
    "I": frozenset({INTEGER}),
    "B": frozenset({BINARY, TEXT, VOID}),
    "H": frozenset({INTEGER, BINARY, TEXT}),
    "P": frozenset({TEXT, TIMESTAMP, DATE}),
    "t": frozenset({TIMESTAMP}),
    "i": frozenset({INTEGER}),
    "n": frozenset({FRACTION}),
    "o": frozenset({BOOLEAN}),
    "G": ATOMIC - {VOID},
    "M": frozenset({"map"}),
    "A": frozenset({"array"}),
    "L": frozenset({"map", "array", "other map", "other array"}),
    "K": frozenset({TEXT}),
    "R": frozenset({TEXT}),
    "C": frozenset({INTEGER}),
}
"""The kinds that a letter of a signature accepts. ``X`` accepts any; all ``E`` of a call have one
kind. ``K``, ``R`` and ``C`` are constants: a text, a regular expression, a whole number."""

_SIGNATURES = """
upper lower ucase lcase initcap trim ltrim rtrim make_valid_utf8: S -> string
reverse: U -> string
length char_length character_length len octet_length bit_length ascii: S -> integer
is_valid_utf8: S -> boolean
md5 sha1 sha: B -> string
crc32: B -> integer
sha2: B C -> string
hex: H -> string
base64: B -> string
unhex unbase64: S -> binary
url_encode try_url_decode: S -> string
substr substring: U I I? -> string
left right: U I -> string
substring_index: S S I -> string
instr: S S -> integer
locate position: S S I? -> integer
startswith endswith contains: S S -> boolean
concat: S* -> string
concat_ws: S S* -> string
replace: S K K? -> string
translate: S K K -> string
lpad rpad: U C K? -> string
split_part: S K C -> string
split: S R C? -> array
rlike regexp regexp_like: S R -> boolean
regexp_extract: S R C? -> string
regexp_replace: S R K -> string
get_json_object: s K -> string
parse_url: s K K? -> string
coalesce: E* -> =
nvl ifnull nullif: E E -> =
nvl2: X E E -> =
if: o E E -> =
greatest least: E E E* -> =
isnull isnotnull: X -> boolean
isnan: n -> boolean
abs sqrt exp ln log10 log2 sign signum ceil ceiling floor: N -> fraction
pow power mod: N N -> fraction
log: N N? -> fraction
round bround: N C? -> fraction
year month day dayofmonth dayofweek dayofyear weekofyear quarter: P -> integer
hour minute second: P -> integer
date_trunc: K P -> timestamp
trunc: P K -> date
date_format: P K -> string
to_timestamp: P K? -> timestamp
to_date: P K? -> date
unix_timestamp: P K? -> integer
from_unixtime: I K? -> string
unix_seconds unix_millis unix_micros: t -> integer
timestamp_micros: i -> timestamp
date_add date_sub: P C -> date
datediff: P P -> integer
last_day: P -> date
hash xxhash64: G G* -> integer
size cardinality: L -> integer
array_contains: A s -> boolean
map_contains_key: M s -> boolean
map_keys map_values: M -> array
"""


@dataclass(frozen=True)
class Function:
    """A function's signature. ``parameters``: letters of ``_ACCEPTED``; the last may repeat.
    ``result``: a kind, or ``=`` for the common kind of the ``E`` arguments."""

    name: str
    parameters: tuple[str, ...]
    least: int
    repeats: bool
    result: str

    def check(self, kinds: Sequence[str], literals: Sequence[Literal]) -> str:
        """Return the kind of a call's result. ``literals``: its constants. Raises ValueError."""
        most = len(kinds) if self.repeats else len(self.parameters)
        if not self.least <= len(kinds) <= most:
            count = f"{self.least}" if self.least == most else f"{self.least} to {most}"
            count = f"at least {self.least}" if self.repeats else count
            raise ValueError(f"{self.name} takes {count} arguments, not {len(kinds)}")
        letters = [self.parameters[min(n, len(self.parameters) - 1)] for n in range(len(kinds))]
        for number, (letter, kind, literal) in enumerate(
            zip(letters, kinds, literals, strict=True)
        ):
            if letter in "KRC" and literal is None:
                raise ValueError(f"argument {number + 1} of {self.name} has to be a constant")
            if letter in _ACCEPTED and kind not in _ACCEPTED[letter]:
                raise ValueError(f"argument {number + 1} of {self.name} cannot be a {kind}")
            if letter == "R":
                sql_patterns.check(str(literal))
        if self.name in _CHECKS:
            _CHECKS[self.name](literals)
        if self.name == "sum" and kinds[0] == INTEGER:
            return INTEGER
        if self.name == "concat" and set(kinds) == {BINARY}:
            return BINARY
        if self.result != "=":
            return self.result
        if self.name == "nullif" and kinds[0] == VOID:
            return VOID
        return common([k for k, letter in zip(kinds, letters, strict=True) if letter == "E"])

    def growth(self, of_arguments: Sequence[int], literals: Sequence[Literal]) -> int:
        """Return the largest size of the result in event sizes, from those of the arguments."""
        total = sum(of_arguments)
        if self.result not in (TEXT, BINARY, "array", "="):
            return 0
        if self.name in ("hex", "base64", "lpad", "rpad"):
            return 2 * total
        if self.name == "url_encode":
            return 3 * total
        if self.name in ("replace", "regexp_replace"):
            replacement = str(literals[2]) if len(literals) > 2 else ""
            return total * (len(replacement) + 1)
        return total


def common(kinds: Sequence[str]) -> str:
    """Return the kind that fits all alternatives. Raises ValueError when there is none."""
    distinct = dict.fromkeys(kind for kind in kinds if kind != VOID)
    if not distinct:
        return VOID
    if distinct.keys() <= {INTEGER, FRACTION}:
        return FRACTION if FRACTION in distinct else INTEGER
    if len(distinct) > 1:
        raise ValueError(f"expected values of one kind, not {' and '.join(distinct)}: CAST one")
    (kind,) = distinct
    if kind not in ATOMIC:
        raise ValueError(f"expected plain values, not a {kind}")
    return kind


def find(name: str) -> Function | None:
    return FUNCTIONS.get(name.lower())


def read(signatures: str) -> dict[str, Function]:
    functions = {}
    for line in signatures.strip().splitlines():
        names, _, rest = line.partition(":")
        taken, _, result = rest.partition("->")
        parts = taken.split()
        repeats = bool(parts) and parts[-1].endswith("*")
        least = sum(not part.endswith(("?", "*")) for part in parts)
        least = max(1 if parts else 0, least)
        letters = tuple(part[0] for part in parts)
        for name in names.split():
            functions[name] = Function(name, letters, least, repeats, result.strip())
    return functions


def _check_number(least: int, most: int, literals: Sequence[Literal]) -> None:
    """Check the second argument if it is given."""
    for literal in literals[1:2]:
        if not isinstance(literal, int) or not least <= literal <= most:
            raise ValueError(f"expected a number from {least} to {most}")


def _check_time_pattern(literals: Sequence[Literal]) -> None:
    given = literals[1] if len(literals) > 1 else None
    if given is not None and not TIME_PATTERN.fullmatch(str(given)):
        raise ValueError(f"expected a time pattern like 'yyyy-MM-dd HH:mm:ss', not {given!r}")


def _check_part_number(literals: Sequence[Literal]) -> None:
    if not literals[1] or not literals[2]:
        raise ValueError("split_part needs a separator and a number other than 0")


def _check_group(literals: Sequence[Literal]) -> None:
    groups = sql_patterns.groups(str(literals[1]))
    number = literals[2] if len(literals) > 2 else 1
    if not isinstance(number, int) or not 0 <= number <= groups:
        raise ValueError(
            f"there is no group {number} in the regular expression, which has {groups}"
        )


def _check_replacement(literals: Sequence[Literal]) -> None:
    sql_patterns.check_replacement(str(literals[2]), sql_patterns.groups(str(literals[1])))


def _check_url_part(literals: Sequence[Literal]) -> None:
    if literals[1] not in URL_PARTS:
        raise ValueError(f"expected one of {', '.join(URL_PARTS)}")
    if len(literals) > 2 and not re.fullmatch("[A-Za-z0-9_.-]+", str(literals[2])):
        raise ValueError("expected the name of a parameter of letters, digits, _, . and -")


_CHECKS: Mapping[str, Callable[[Sequence[Literal]], None]] = {
    "bround": partial(_check_number, -18, 18),
    "date_add": partial(_check_number, -DAYS, DAYS),
    "date_format": _check_time_pattern,
    "date_sub": partial(_check_number, -DAYS, DAYS),
    "from_unixtime": _check_time_pattern,
    "lpad": partial(_check_number, 0, PADDED_CHARACTERS),
    "parse_url": _check_url_part,
    "regexp_extract": _check_group,
    "regexp_replace": _check_replacement,
    "round": partial(_check_number, -18, 18),
    "rpad": partial(_check_number, 0, PADDED_CHARACTERS),
    "split_part": _check_part_number,
    "to_date": _check_time_pattern,
    "to_timestamp": _check_time_pattern,
    "unix_timestamp": _check_time_pattern,
}
FUNCTIONS: Mapping[str, Function] = read(_SIGNATURES)


FRAME_ROWS = 1000

_AGGREGATES = """
count: X* -> integer
count_if: o -> integer
sum: N -> fraction
avg mean: N -> fraction
min max: E -> =
max_by min_by: E G -> =
bool_and bool_or: o -> boolean
stddev stddev_pop stddev_samp variance var_pop var_samp: N -> fraction
approx_count_distinct: G -> integer
percentile_approx approx_percentile: N n -> fraction
"""
_WINDOWS = """
row_number rank dense_rank: -> integer
percent_rank cume_dist: -> fraction
ntile: C -> integer
lag lead: E C? E? -> =
first_value last_value: E -> =
"""
AGGREGATES: Mapping[str, Function] = read(_AGGREGATES)
WINDOWS: Mapping[str, Function] = read(_WINDOWS)
"""Window functions. They need OVER, which aggregates may have too."""

BY_ORDER = (
    "row_number", "ntile", "lag", "lead", "first_value", "last_value", "max_by", "min_by",
    "percentile_approx", "approx_percentile", "rows",
)  # fmt: skip
"""Functions whose result depends on the order of rows with equal sort keys; also ROWS windows."""


def frame_allowed(kind: str, start: str, end: str) -> bool:
    """Return whether a window takes bounded time per row. FEW: at most FRAME_ROWS rows."""
    if start == "UNBOUNDED PRECEDING":
        return end in ("", "CURRENT ROW", "UNBOUNDED FOLLOWING")
    near = ("CURRENT ROW", "FEW")
    return kind == "ROWS" and start in near and end in ("", *near)
