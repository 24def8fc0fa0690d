"""The options of ``parse``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from flumeng.config.column_kinds import EVENT, RECEIVED, Columns, Kind, check_column, require_new
from flumeng.config.component import FilterOptions, problem_of
from flumeng.config.functions import INTEGER, TEXT
from flumeng.filters.options import grok, log_formats
from flumeng.filters.options.fields import check_quote, check_separator, kinds
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_regex, check_timezone, group_names

_TEXT = Kind(TEXT)
TEXTS = Kind("map", (("", _TEXT), ("", _TEXT)))
SYSLOG = {
    "facility": Kind(INTEGER),
    "severity": Kind(INTEGER),
    "app": _TEXT,
    "procid": _TEXT,
    "msgid": _TEXT,
    "structured": _TEXT,
    "message": _TEXT,
}
ACCESS_LOG = {
    "client": _TEXT,
    "ident": _TEXT,
    "user": _TEXT,
    "method": _TEXT,
    "path": _TEXT,
    "protocol": _TEXT,
    "status": Kind(INTEGER),
    "bytes": Kind(INTEGER),
    "referer": _TEXT,
    "agent": _TEXT,
}
CONTAINERS = ("cri", "docker")
CONTAINER = {"stream": _TEXT, "logtag": _TEXT, "message": _TEXT}
CEF = {
    "cef_version": _TEXT,
    "device_vendor": _TEXT,
    "device_product": _TEXT,
    "device_version": _TEXT,
    "event_class_id": _TEXT,
    "name": _TEXT,
    "agent_severity": _TEXT,
}
LEEF = {
    "leef_version": _TEXT,
    "device_vendor": _TEXT,
    "device_product": _TEXT,
    "device_version": _TEXT,
    "event_id": _TEXT,
}
_ALWAYS = ("format", "ts_within_seconds")
_NAMED = ("schema", "fields", "into")


@dataclass(frozen=True)
class _Format:
    """A format: it ``needs`` one option of each group, takes ``others``, and makes ``columns``."""

    needs: tuple[tuple[str, ...], ...] = ()
    others: tuple[str, ...] = ()
    columns: Columns = dataclasses.field(default_factory=dict)

    @property
    def options(self) -> set[str]:
        return {name for group in self.needs for name in group} | {*self.others, *_ALWAYS}


_FORMATS: Mapping[str, _Format] = {
    "syslog": _Format(others=("timezone",), columns=SYSLOG),
    "json": _Format(needs=(_NAMED,)),
    "key_value": _Format(needs=(_NAMED,), others=("pair_separator", "value_separator")),
    "logfmt": _Format(needs=(_NAMED,)),
    "csv": _Format(needs=(("schema",),), others=("delimiter", "quote")),
    "access_log": _Format(others=("log_format",), columns=ACCESS_LOG),
    "cri": _Format(columns=CONTAINER),
    "docker": _Format(columns=CONTAINER),
    "cef": _Format(others=_NAMED, columns=CEF),
    "leef": _Format(others=_NAMED, columns=LEEF),
    "grok": _Format(needs=(("pattern",),), others=("patterns",)),
    "regex": _Format(needs=(("pattern",),)),
}


@dataclass(frozen=True)
class Parse(FilterOptions):
    """Parses the body of each event, and adds a column for each value.

    An event that cannot be parsed is kept, with the reason in the attribute `parse_error`.
    [Formats](formats.md) describes each format.
    """

    implementation: ClassVar[str] = "flumeng.filters.parse:ParseFilter"

    notes_errors: ClassVar[bool] = True

    format: Literal[
        "syslog",
        "json",
        "key_value",
        "logfmt",
        "csv",
        "access_log",
        "cri",
        "docker",
        "cef",
        "leef",
        "grok",
        "regex",
    ] = option(doc="The format of the bodies.")
    pattern: str | tuple[str, ...] | None = option(
        doc="For `regex`: the pattern (RE2). Each named group becomes a text column. For `grok`: a "
        "pattern, or several that are tried in their order.",
        example="'(?P<client>\\S+) (?P<status>[0-9]+)'",
        default=None,
    )
    patterns: Mapping[str, str] | None = option(
        doc="For `grok`: your own patterns, by name.",
        check=grok.check_name,
        example="{ORDER: '[A-Z]{2}[0-9]+'}",
        default=None,
    )
    log_format: str | None = option(
        doc="For `access_log`: the `log_format` of nginx, or the `LogFormat` of Apache.",
        example="'$remote_addr [$time_local] \"$request\" $status $request_time'",
        default=None,
    )
    schema: str | None = option(
        doc="The columns to take, named like their values, as Spark DDL.",
        example='"user STRING, took_ms DOUBLE"',
        default=None,
    )
    fields: Mapping[str, str] | None = option(
        doc="The columns to take, each with the path of its value and optionally a type "
        "(`STRING` by default; `INT`, `BIGINT`, `DOUBLE`, `BOOLEAN`, `TIMESTAMP`, ...).",
        check=check_column,
        example='{user: user.name, took_ms: "took.ms BIGINT"}',
        default=None,
    )
    into: str | None = option(
        doc="A column for all values, as a map of texts.",
        check=check_column,
        example="fields",
        default=None,
    )
    pair_separator: str | None = option(
        doc="For `key_value`: the characters that separate pairs, or `tab` or `space`; by "
        "default white space.",
        check=check_separator,
        example='","',
        default=None,
    )
    value_separator: str | None = option(
        doc="For `key_value`: the character between a name and its value; by default `=`.",
        check=check_separator,
        example='":"',
        default=None,
    )
    delimiter: str | None = option(
        doc="For `csv`: the character between fields, or `tab` or `space`; by default `,`.",
        check=check_separator,
        example='";"',
        default=None,
    )
    quote: str | None = option(
        doc='For `csv`: the character around fields; by default `"`.',
        check=check_quote,
        example='"\'"',
        default=None,
    )
    timezone: str | None = option(
        doc="The time zone, an IANA name, of times without one; by default UTC.",
        check=check_timezone,
        example="Europe/Berlin",
        default=None,
    )
    ts_within_seconds: float = option(
        doc="A time farther than this from the event's receipt is rejected: `ts` stays the time "
        "of receipt, and the attribute `ts_refused` has the rejected time.",
        between=(0, 1000 * 366 * 86_400),
        default=7 * 86_400.0,
    )

    @property
    def pattern_list(self) -> tuple[str, ...]:
        return (self.pattern,) if isinstance(self.pattern, str) else self.pattern or ()

    def problems(self) -> Iterator[tuple[str, str]]:
        form = _FORMATS[self.format]
        given = {it.name for it in dataclasses.fields(self) if getattr(self, it.name) != it.default}
        for name in sorted(given - form.options):
            takers = [other for other, it in _FORMATS.items() if name in it.options]
            takes = f"only {_one_of(takers)} takes this option"
            yield name, f"{takes}, and the format is {self.format}"
        for group in form.needs:
            if not given.intersection(group):
                options = " or ".join(f'"{name}"' for name in group)
                it = "it" if len(group) == 1 else "one"
                yield "", f"missing {options}: format {self.format} needs {it}"
        if self.format == "json" and self.schema is not None and (self.fields or self.into):
            yield "schema", "format json takes either a schema, or fields and into"
        for name in ("value_separator", "delimiter"):
            text = getattr(self, name) or ""
            if len(text) > 1 and text not in ("tab", "space"):
                yield name, f"expected one character, not {text}"
        if self.format == "csv" and (self.delimiter or ",") == (self.quote or '"'):
            yield "quote", "expected another character than the delimiter"
        if given <= form.options:
            yield from self._problems_of_format()

    def _problems_of_format(self) -> Iterator[tuple[str, str]]:
        if self.format == "regex" and self.pattern is not None:
            if len(self.pattern_list) == 1:
                yield from _pattern_problems(self.pattern_list[0])
            else:
                yield "pattern", "format regex takes one pattern"
        if self.format == "grok":
            yield from problem_of("pattern", self._columns_of_grok)
        if self.log_format is not None:
            yield from problem_of("log_format", log_formats.read, self.log_format)
        read = partial(kinds, nested=self.format == "json")
        yield from problem_of("fields", read, None, self.fields)

    @property
    def reads_container(self) -> bool:
        return self.format in CONTAINERS

    def behind(self, columns: Columns) -> Columns:
        for name, kind in RECEIVED.items():
            if columns.get(name) != kind:
                raise ValueError(
                    f"parse needs the column {name} as it was received: put parse before the "
                    "filter that changes or drops it"
                )
        more = self.makes()
        require_new(columns, more)
        return {**columns, **more}

    def makes(self) -> Columns:
        form = _FORMATS[self.format]
        if self.format == "regex":
            return dict.fromkeys(group_names(self.pattern_list[0]), _TEXT)
        if self.format == "grok":
            return self._columns_of_grok()
        if self.log_format is not None:
            return columns_of(log_formats.columns(self.log_format))
        more = kinds(self.schema, self.fields, nested=self.format == "json")
        named = _without_own(more)
        if self.into is not None:
            require_new([*form.columns, *named], [self.into])
            named[self.into] = TEXTS
        require_new(form.columns, named)
        return {**form.columns, **named}

    def _columns_of_grok(self) -> Columns:
        types = grok.all_types(self.pattern_list, self.patterns or {})
        columns = _without_own(columns_of(types))
        for name in columns:
            if name in EVENT:
                raise ValueError(f"every event has a column {name} already: rename the field")
        return columns


def columns_of(types: Mapping[str, str]) -> Columns:
    """Return the columns of types in Spark DDL. Raises ValueError."""
    schema = ", ".join(f"{name} {kind}" for name, kind in types.items())
    return kinds(schema, None, nested=False)


def _without_own(columns: Columns) -> dict[str, Kind]:
    """Return columns without ``ts`` and ``host``. Raises ValueError unless these fit the event."""
    for name in columns.keys() & {"ts", "host"}:
        if columns[name] != RECEIVED[name]:
            raise ValueError(f"the event column {name} must have the type {RECEIVED[name].name}")
    return {name: kind for name, kind in columns.items() if name not in ("ts", "host")}


def _one_of(formats: list[str]) -> str:
    return f"format {formats[0]}" if len(formats) == 1 else f"one of {', '.join(formats)}"


def _pattern_problems(pattern: str) -> Iterator[tuple[str, str]]:
    try:
        check_regex(pattern)
    except ValueError as error:
        yield "pattern", f'{error}; found "{pattern}"'
        return
    for name in group_names(pattern):
        if name in EVENT:
            yield "pattern", f"every event has a column {name} already: rename the group"
