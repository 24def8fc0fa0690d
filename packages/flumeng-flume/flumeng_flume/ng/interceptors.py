"""Translates the interceptors of Flume NG to filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flumeng_flume.answers import Setting, truth
from flumeng_flume.findings import Location, Log
from flumeng_flume.ng.agents import Part
from flumeng_flume.stream import BODY, Stream, quoted

IDENTITY = "concat(journal, '-', CAST(seq AS STRING))"
_NETWORK = ("avro", "thrift", "netcat", "netcatudp", "syslogtcp", "syslogudp", "http")


@dataclass(frozen=True)
class Interceptor:
    """An interceptor of a source; ``name`` as in the properties."""

    name: str
    source: Part
    settings: Mapping[str, Setting]
    location: Location

    def get(self, name: str, otherwise: str = "") -> str:
        setting = self.settings.get(name)
        return setting.value if setting else otherwise

    @property
    def name_of_row(self) -> str:
        return kind_of(self.get("type"))

    def mapped(self, log: Log, to: str, *names: str) -> None:
        for name in names:
            if name in self.settings:
                log.mapped(self.settings[name].location, to)


Apply = Callable[[Interceptor, Stream, Log], None]


def apply(part: Part, stream: Stream, log: Log) -> None:
    """Append the filters for the interceptors of a source to the stream."""
    names = part.first("interceptors")
    if names is None:
        for setting in part.under("interceptors.").values():
            log.missing(
                setting.location, "interceptors names none, so Flume does not use it either"
            )
        return
    log.mapped(names.location, "filters")
    for name in names.value.split():
        settings = part.under(f"interceptors.{name}.")
        kind = settings.get("type")
        location = kind.location if kind else names.location
        interceptor = Interceptor(name, part, settings, location)
        row = ROWS.get(kind_of(kind.value if kind else ""))
        if row is None:
            log.missing(
                location,
                f"flumeng does not know {kind.value if kind else name}: "
                "use where, select, parse or sql instead, if possible",
            )
        else:
            try:
                row(interceptor, stream, log)
                _report_rest(interceptor, log)
            except ValueError as error:
                log.missing(location, str(error))
        for setting in settings.values():
            if not log.has(setting.location):
                log.missing(setting.location, f"belongs to {name}, which does not use it here")
    for setting in part.under("interceptors.").values():
        if not log.has(setting.location):
            log.missing(setting.location, "interceptors does not name it, so Flume does not use it")


def _report_rest(interceptor: Interceptor, log: Log) -> None:
    if interceptor.name_of_row == "morphline":
        return
    for setting in interceptor.settings.values():
        if not log.has(setting.location):
            log.mapped(
                setting.location, f"nothing to set: {interceptor.name_of_row} has no such property"
            )


def kind_of(type_: str) -> str:
    """Return the short name of a type, also of a class of Flume."""
    match = re.fullmatch(r"org\.apache\.flume\.(?:\w+\.)*(\w+?)Interceptor\$Builder", type_.strip())
    return SHORT.get(match[1].lower(), "") if match else type_.strip().lower()


def _timestamp(interceptor: Interceptor, stream: Stream, log: Log) -> None:
    log.mapped(interceptor.location, "nothing to set: ts is the time of receipt")
    keeps = "timestamp" in stream.headers and truth(interceptor.get("preserveExisting"))
    stream.headers[interceptor.get("headerName", interceptor.get("header", "timestamp"))] = "ts"
    if keeps or "preserveExisting" not in interceptor.settings:
        interceptor.mapped(log, "ts", "preserveExisting")
    else:
        log.differs(
            interceptor.settings["preserveExisting"].location,
            "ts is the time that parse finds, if any",
        )
    interceptor.mapped(log, "ts", "headerName", "header")


def _host(interceptor: Interceptor, stream: Stream, log: Log) -> None:
    if interceptor.source.type.lower() in _NETWORK:
        log.differs(
            interceptor.location, "host is the sender of the event, not the host that received it"
        )
    else:
        log.mapped(interceptor.location, "nothing to set: host")
    stream.headers[interceptor.get("hostHeader", "host")] = "host"
    interceptor.mapped(log, "the column host", "hostHeader", "preserveExisting")
    if "useIP" in interceptor.settings:
        location = interceptor.settings["useIP"].location
        if truth(interceptor.get("useIP", "true")):
            log.differs(location, "host is the name of the node for files and commands")
        else:
            log.mapped(location, "host")


def _static(interceptor: Interceptor, stream: Stream, log: Log) -> None:
    key, value = interceptor.get("key", "key"), interceptor.get("value", "value")
    column = stream.set(key, value)
    stream.headers[key] = column
    log.mapped(interceptor.location, f"set: a column {column}")
    interceptor.mapped(log, f"the column {column}", "key", "value")
    if "preserveExisting" in interceptor.settings:
        log.mapped(
            interceptor.settings["preserveExisting"].location,
            "the column is new, nothing is replaced",
        )


def _search_replace(interceptor: Interceptor, stream: Stream, log: Log) -> None:
    pattern, replacement = interceptor.get("searchPattern"), interceptor.get("replaceString")
    stream.replace(
        "body", f"CAST(regexp_replace({BODY}, {quoted(pattern)}, {quoted(replacement)}) AS BINARY)"
    )
    log.mapped(interceptor.location, "select: regexp_replace of the body")
    interceptor.mapped(log, "regexp_replace", "searchPattern", "replaceString")
    if "charset" in interceptor.settings:
        if interceptor.get("charset").upper().replace("-", "") == "UTF8":
            interceptor.mapped(log, "UTF-8", "charset")
        else:
            log.differs(interceptor.settings["charset"].location, "bodies are read as UTF-8")


def _regex_filter(interceptor: Interceptor, stream: Stream, log: Log) -> None:
    matches = f"{BODY} RLIKE {quoted(interceptor.get('regex', '.*'))}"
    stream.where(f"NOT ({matches})" if truth(interceptor.get("excludeEvents")) else matches)
    log.mapped(interceptor.location, "where: RLIKE")
    interceptor.mapped(log, "where", "regex", "excludeEvents")


def _regex_extractor(interceptor: Interceptor, stream: Stream, log: Log) -> None:
    pattern, names = interceptor.get("regex"), interceptor.get("serializers").split()
    for number, serializer in enumerate(names, 1):
        name = interceptor.get(f"serializers.{serializer}.name", serializer)
        kind = interceptor.get(f"serializers.{serializer}.type", "default")
        expression = f"regexp_extract({BODY}, {quoted(pattern)}, {number})"
        column = stream.add(name, expression)
        stream.headers[name] = column
        interceptor.mapped(
            log,
            f"the column {column}",
            *(f"serializers.{serializer}.{w}" for w in ("name", "type")),
        )
        pattern_of_time = interceptor.settings.get(f"serializers.{serializer}.pattern")
        if kind.endswith("MillisSerializer") and pattern_of_time is not None:
            _as_time(pattern_of_time, name, column, stream, log)
        elif kind.rpartition(".")[2] not in (
            "default",
            "RegexExtractorInterceptorPassThroughSerializer",
        ):
            log.missing(
                interceptor.settings[f"serializers.{serializer}.type"].location,
                f"{column} is the matched text",
            )
    log.differs(
        interceptor.location,
        "select: columns by regexp_extract; an event that does not match has an empty text in them",
    )
    interceptor.mapped(log, "regexp_extract", "regex", "serializers")


def _as_time(pattern: Setting, name: str, column: str, stream: Stream, log: Log) -> None:
    if name != "timestamp":
        log.differs(pattern.location, f"{column} is the text; let the filter time read it")
        return
    stream.time(column, strptime(pattern.value))
    stream.headers[name] = "ts"
    log.differs(
        pattern.location, f"time: ts is read out of {column}, in UTC unless it names a zone"
    )


_JODA = {
    "yyyy": "%Y", "YYYY": "%Y", "yy": "%y", "MM": "%m", "M": "%m", "MMM": "%b", "MMMM": "%B",
    "dd": "%d", "d": "%d", "HH": "%H", "H": "%H", "hh": "%I", "h": "%I", "mm": "%M", "m": "%M",
    "ss": "%S", "s": "%S", "SSS": "%f", "a": "%p", "Z": "%z", "EEE": "%a", "E": "%a",
    "EEEE": "%A", "DDD": "%j",
}  # fmt: skip


def strptime(pattern: str) -> str:
    """Return a pattern of Joda-Time as one of ``strptime``. Raises ValueError."""

    def meant(match: re.Match[str]) -> str:
        if match["quoted"] is not None:
            return match["quoted"].replace("%", "%%") or "'"
        if match["letters"] is None:
            return match[0].replace("%", "%%")
        if match["letters"] not in _JODA:
            raise ValueError(f"{match['letters']} in a time is not supported")
        return _JODA[match["letters"]]

    return re.sub(r"'(?P<quoted>[^']*)'|(?P<letters>([A-Za-z])\3*)|.", meant, pattern)


def _remove_header(interceptor: Interceptor, stream: Stream, log: Log) -> None:
    names = {
        interceptor.get("withName"),
        *re.split(interceptor.get("fromListSeparator", r"\s*,\s*"), interceptor.get("fromList")),
    }
    pattern = interceptor.get("matching", interceptor.get("withMatching"))
    gone = [
        name
        for name in stream.headers
        if name in names or (pattern and re.fullmatch(pattern, name))
    ]
    for name in gone:
        column = stream.headers.pop(name)
        if column in stream.columns and column not in Stream(stream.kafka).columns:
            stream.remove(column)
    log.differs(
        interceptor.location,
        "only columns that interceptors made are removed; attrs stays as it is",
    )
    interceptor.mapped(
        log,
        f"removed: {', '.join(gone) or 'no existing header'}",
        "withName",
        "fromList",
        "fromListSeparator",
        "matching",
        "withMatching",
    )


def _uuid(interceptor: Interceptor, stream: Stream, log: Log) -> None:
    stream.headers[interceptor.get("headerName", "id")] = IDENTITY
    log.mapped(interceptor.location, "nothing to set: journal and seq are the identity of an event")
    interceptor.mapped(log, "journal and seq", "headerName", "preserveExisting")
    if interceptor.get("prefix"):
        log.differs(interceptor.settings["prefix"].location, "the identity has no prefix")


def _morphline(interceptor: Interceptor, _stream: Stream, log: Log) -> None:
    log.missing(interceptor.location, "rewrite the morphline as filters: parse, where, select, sql")


ROWS: Mapping[str, Apply] = {
    "timestamp": _timestamp,
    "host": _host,
    "static": _static,
    "search_replace": _search_replace,
    "regex_filter": _regex_filter,
    "regex_extractor": _regex_extractor,
    "remove_header": _remove_header,
    "uuid": _uuid,
    "morphline": _morphline,
}
SHORT: Mapping[str, str] = {
    "timestamp": "timestamp",
    "host": "host",
    "static": "static",
    "searchandreplace": "search_replace",
    "regexfiltering": "regex_filter",
    "regexextractor": "regex_extractor",
    "removeheader": "remove_header",
    "uuid": "uuid",
    "morphline": "morphline",
}
