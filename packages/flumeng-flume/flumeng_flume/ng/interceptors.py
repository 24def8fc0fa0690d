"""The interceptors of Flume NG, as filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flumeng_flume.answers import Setting, truth
from flumeng_flume.findings import Log, Place
from flumeng_flume.ng.agents import Part
from flumeng_flume.stream import BODY, Stream, quoted

IDENTITY = "concat(journal, '-', CAST(seq AS STRING))"
_NETWORK = ("avro", "thrift", "netcat", "netcatudp", "syslogtcp", "syslogudp", "http")


@dataclass(frozen=True)
class Interceptor:
    """One of a source; ``name`` is as the properties say."""

    name: str
    source: Part
    settings: Mapping[str, Setting]
    place: Place

    def get(self, name: str, otherwise: str = "") -> str:
        found = self.settings.get(name)
        return found.value if found else otherwise

    @property
    def name_of_row(self) -> str:
        return kind_of(self.get("type"))

    def said(self, log: Log, to: str, *names: str) -> None:
        for name in names:
            if name in self.settings:
                log.mapped(self.settings[name].place, to)


Apply = Callable[[Interceptor, Stream, Log], None]


def apply(part: Part, stream: Stream, log: Log) -> None:
    """Put what the interceptors of a source do behind the stream."""
    names = part.first("interceptors")
    if names is None:
        for setting in part.under("interceptors.").values():
            log.missing(setting.place, "interceptors names none, so Flume does not use it either")
        return
    log.mapped(names.place, "filters")
    for name in names.value.split():
        settings = part.under(f"interceptors.{name}.")
        kind = settings.get("type")
        place = kind.place if kind else names.place
        one = Interceptor(name, part, settings, place)
        row = ROWS.get(kind_of(kind.value if kind else ""))
        if row is None:
            log.missing(
                place,
                f"flumeng does not know {kind.value if kind else name}: "
                "say it with where, select, parse or sql, if it can be said",
            )
        else:
            try:
                row(one, stream, log)
                _tell_rest(one, log)
            except ValueError as error:
                log.missing(place, str(error))
        for setting in settings.values():
            if not log.has(setting.place):
                log.missing(setting.place, f"belongs to {name}, which has no use for it here")
    for setting in part.under("interceptors.").values():
        if not log.has(setting.place):
            log.missing(setting.place, "interceptors does not name it, so Flume does not use it")


def _tell_rest(one: Interceptor, log: Log) -> None:
    if one.name_of_row == "morphline":
        return
    for setting in one.settings.values():
        if not log.has(setting.place):
            log.mapped(setting.place, f"nothing to set: {one.name_of_row} has no such property")


def kind_of(type_: str) -> str:
    """The short name of a type; of a class of Flume's own, what its name says."""
    found = re.fullmatch(r"org\.apache\.flume\.(?:\w+\.)*(\w+?)Interceptor\$Builder", type_.strip())
    return SHORT.get(found[1].lower(), "") if found else type_.strip().lower()


def _timestamp(one: Interceptor, stream: Stream, log: Log) -> None:
    log.mapped(one.place, "nothing to set: ts is the time of receipt")
    keeps = "timestamp" in stream.headers and truth(one.get("preserveExisting"))
    stream.headers[one.get("headerName", one.get("header", "timestamp"))] = "ts"
    if keeps or "preserveExisting" not in one.settings:
        one.said(log, "ts", "preserveExisting")
    else:
        log.differs(one.settings["preserveExisting"].place, "ts is what parse finds, if it does")
    one.said(log, "ts", "headerName", "header")


def _host(one: Interceptor, stream: Stream, log: Log) -> None:
    if one.source.type.lower() in _NETWORK:
        log.differs(one.place, "host is who sent the event, and not the host that received it")
    else:
        log.mapped(one.place, "nothing to set: host")
    stream.headers[one.get("hostHeader", "host")] = "host"
    one.said(log, "the column host", "hostHeader", "preserveExisting")
    if "useIP" in one.settings:
        place = one.settings["useIP"].place
        if truth(one.get("useIP", "true")):
            log.differs(place, "host is the name of the node for files and commands")
        else:
            log.mapped(place, "host")


def _static(one: Interceptor, stream: Stream, log: Log) -> None:
    key, value = one.get("key", "key"), one.get("value", "value")
    column = stream.set(key, value)
    stream.headers[key] = column
    log.mapped(one.place, f"set: a column {column}")
    one.said(log, f"the column {column}", "key", "value")
    if "preserveExisting" in one.settings:
        log.mapped(one.settings["preserveExisting"].place, "the column is new, nothing is replaced")


def _search_replace(one: Interceptor, stream: Stream, log: Log) -> None:
    pattern, replacement = one.get("searchPattern"), one.get("replaceString")
    stream.replace(
        "body",
        f"CAST(regexp_replace({BODY}, {quoted(pattern)}, {quoted(replacement)}) AS BINARY)",
    )
    log.mapped(one.place, "select: regexp_replace of the body")
    one.said(log, "regexp_replace", "searchPattern", "replaceString")
    if "charset" in one.settings:
        if one.get("charset").upper().replace("-", "") == "UTF8":
            one.said(log, "UTF-8", "charset")
        else:
            log.differs(one.settings["charset"].place, "bodies are read as UTF-8")


def _regex_filter(one: Interceptor, stream: Stream, log: Log) -> None:
    matches = f"{BODY} RLIKE {quoted(one.get('regex', '.*'))}"
    stream.where(f"NOT ({matches})" if truth(one.get("excludeEvents")) else matches)
    log.mapped(one.place, "where: RLIKE")
    one.said(log, "where", "regex", "excludeEvents")


def _regex_extractor(one: Interceptor, stream: Stream, log: Log) -> None:
    pattern, names = one.get("regex"), one.get("serializers").split()
    for number, serializer in enumerate(names, 1):
        name = one.get(f"serializers.{serializer}.name", serializer)
        kind = one.get(f"serializers.{serializer}.type", "default")
        found = f"regexp_extract({BODY}, {quoted(pattern)}, {number})"
        column = stream.add(name, found)
        stream.headers[name] = column
        one.said(
            log,
            f"the column {column}",
            *(f"serializers.{serializer}.{w}" for w in ("name", "type")),
        )
        pattern_of_time = one.settings.get(f"serializers.{serializer}.pattern")
        if kind.endswith("MillisSerializer") and pattern_of_time is not None:
            _as_time(pattern_of_time, name, column, stream, log)
        elif kind.rpartition(".")[2] not in (
            "default",
            "RegexExtractorInterceptorPassThroughSerializer",
        ):
            log.missing(
                one.settings[f"serializers.{serializer}.type"].place,
                f"{column} is the text that was found",
            )
    log.differs(
        one.place,
        "select: columns by regexp_extract; an event that does not match has an empty text in them",
    )
    one.said(log, "regexp_extract", "regex", "serializers")


def _as_time(pattern: Setting, name: str, column: str, stream: Stream, log: Log) -> None:
    if name != "timestamp":
        log.differs(pattern.place, f"{column} is the text; let the filter time read it")
        return
    stream.time(column, strptime(pattern.value))
    stream.headers[name] = "ts"
    log.differs(pattern.place, f"time: ts is read out of {column}, in UTC unless it names a zone")


_JODA = {
    "yyyy": "%Y", "YYYY": "%Y", "yy": "%y", "MM": "%m", "M": "%m", "MMM": "%b", "MMMM": "%B",
    "dd": "%d", "d": "%d", "HH": "%H", "H": "%H", "hh": "%I", "h": "%I", "mm": "%M", "m": "%M",
    "ss": "%S", "s": "%S", "SSS": "%f", "a": "%p", "Z": "%z", "EEE": "%a", "E": "%a",
    "EEEE": "%A", "DDD": "%j",
}  # fmt: skip


def strptime(pattern: str) -> str:
    """A pattern of Joda-Time as one of ``strptime``. Raises ValueError."""

    def meant(found: re.Match[str]) -> str:
        if found["quoted"] is not None:
            return found["quoted"].replace("%", "%%") or "'"
        if found["letters"] is None:
            return found[0].replace("%", "%%")
        if found["letters"] not in _JODA:
            raise ValueError(f"{found['letters']} in a time is nothing that flumeng reads")
        return _JODA[found["letters"]]

    return re.sub(r"'(?P<quoted>[^']*)'|(?P<letters>([A-Za-z])\3*)|.", meant, pattern)


def _remove_header(one: Interceptor, stream: Stream, log: Log) -> None:
    names = {
        one.get("withName"),
        *re.split(one.get("fromListSeparator", r"\s*,\s*"), one.get("fromList")),
    }
    pattern = one.get("matching", one.get("withMatching"))
    gone = [
        name
        for name in stream.headers
        if name in names or (pattern and re.fullmatch(pattern, name))
    ]
    for name in gone:
        column = stream.headers.pop(name)
        if column in stream.columns and column not in Stream(stream.kafka).columns:
            stream.remove(column)
    log.differs(one.place, "only columns that interceptors made are removed; attrs stays as it is")
    one.said(
        log,
        f"removed: {', '.join(gone) or 'nothing that is there'}",
        "withName",
        "fromList",
        "fromListSeparator",
        "matching",
        "withMatching",
    )


def _uuid(one: Interceptor, stream: Stream, log: Log) -> None:
    stream.headers[one.get("headerName", "id")] = IDENTITY
    log.mapped(one.place, "nothing to set: journal and seq are the identity of an event")
    one.said(log, "journal and seq", "headerName", "preserveExisting")
    if one.get("prefix"):
        log.differs(one.settings["prefix"].place, "the identity has no prefix")


def _morphline(one: Interceptor, _stream: Stream, log: Log) -> None:
    log.missing(one.place, "write what the morphline does as filters: parse, where, select, sql")


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
