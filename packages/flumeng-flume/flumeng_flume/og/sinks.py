"""The sinks of Flume OG that end a flow: a row for each name says what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flumeng_flume import escapes
from flumeng_flume.answers import Options, Setting
from flumeng_flume.drafts import Draft, label, valid
from flumeng_flume.findings import Log, Place
from flumeng_flume.og.tree import Call
from flumeng_flume.stream import Stream

FORMATS: Mapping[str, tuple[str, str]] = {
    "raw": ("text", ""),
    "avro": ("avro", "the schema is that of flumeng's columns; needs flumeng[avro]"),
    "avrodata": ("avro", "the schema is that of flumeng's columns; needs flumeng[avro]"),
    "avrojson": ("json", "an object has flumeng's columns"),
    "json": ("json", "an object has flumeng's columns"),
    "seqfile": ("text", "flumeng writes no sequence files"),
    "syslog": ("text", "a line is the body"),
    "log4j": ("text", "a line is the body"),
    "debug": ("text", "a line is the body"),
    "default": ("text", "a line is the body"),
}
DEFAULT_FORMAT = "avrojson"
Build = Callable[[Call, Stream, Place, Log], dict[str, Any]]


def translate(call: Call, place: Place, stream: Stream, log: Log) -> Draft | None:
    """None when nothing valid could be made of it; what flumeng does not know is kept in files."""
    row = ROWS.get(call.name)
    if row is None:
        node = place.subject.partition(":")[0]
        path = f"/var/lib/flumeng/imported/{label(node)}/{label(call.name)}"
        log.missing(
            place,
            UNKNOWN.get(call.name, f"flumeng does not know the sink {call.name}")
            + f"; {path} keeps the events meanwhile",
        )
        return _draft("files", {"path": path}, place)
    name, build = row
    try:
        made = build(call, stream, place, log)
    except ValueError as error:
        log.missing(place, str(error))
        return None
    draft = _draft(name, made, place)
    if not valid(draft, log, stream.filters):
        return None
    if not log.has(place):
        log.mapped(place, f"sink {name}")
    return draft


def forward(targets: list[str], place: Place, log: Log) -> Draft:
    """To nodes that are not imported with this one."""
    log.differs(
        place,
        f"no node here receives it: sink tcp to {', '.join(targets)}, framing length-prefixed, for "
        "the source tcp of another flumeng",
    )
    return _draft("tcp", {"targets": targets, "framing": "length-prefixed"}, place)


def _draft(name: str, options: dict[str, Any], place: Place) -> Draft:
    draft = Draft("sink", name, place, Options())
    seconds = options.pop("seconds", None)
    for option, value in options.items():
        draft.options.set(option, value)
    if seconds:
        draft.batch_seconds = (seconds, Setting(place, str(seconds), str(seconds)))
    return draft


def _directory(text: str, stream: Stream, place: Place, log: Log) -> str:
    path, wrong = escapes.translate(text.rstrip("/"), stream)
    for why in wrong:
        log.missing(place, why)
    if escapes.TIMED.search(path):
        log.differs(place, "times of a path are in UTC, and those of the events' receipt")
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path if path.startswith("/") else "/" + path
    return (
        f"{scheme}://"
        + ("/" if rest.startswith("/") else "")
        + "/".join(word for word in rest.split("/") if word)
    )


def _format(call: Call, number: int, place: Place, log: Log) -> dict[str, Any]:
    value = call.args[number] if number < len(call.args) else DEFAULT_FORMAT
    name = value.name if isinstance(value, Call) else str(value)
    known = FORMATS.get(name)
    if known is None:
        log.missing(place, f"flumeng does not know the format {name}: json is taken")
        return {"format": "json", "compression": "none"}
    if known[1]:
        log.differs(place, f"format: {known[0]}; {known[1]}")
    codec = value.args[0] if isinstance(value, Call) and value.args else None
    made: dict[str, Any] = {"format": known[0], "compression": "none"}
    if codec is not None:
        made["compression"] = "gzip" if str(codec).lower().startswith(("gz", "def")) else "zstd"
        log.differs(place, f"compression: {made['compression']}")
    return made


def _collector(call: Call, stream: Stream, place: Place, log: Log) -> dict[str, Any]:
    path = _directory(call.text(0), stream, place, log)
    log.differs(place, f"sink files, path: {path}; files have names of flumeng")
    milliseconds = call.text(2, "30000")
    seconds = max(1, int(milliseconds) // 1000) if milliseconds.isdecimal() else 30
    return {"path": path, "seconds": seconds, **_format(call, 3, place, log)}


def _dfs(number: int) -> Build:
    """``number`` is the argument with the format."""

    def build(call: Call, stream: Stream, place: Place, log: Log) -> dict[str, Any]:
        path = _directory(call.text(0), stream, place, log)
        log.differs(place, f"sink files, path: {path}; files have names of flumeng")
        if call.name == "dfs":
            log.differs(place, "format: text; flumeng writes no sequence files")
            return {"path": path, "format": "text", "compression": "none"}
        return {"path": path, **_format(call, number, place, log)}

    return build


def _file(call: Call, stream: Stream, place: Place, log: Log) -> dict[str, Any]:
    path = _directory(call.text(0), stream, place, log)
    log.differs(place, f"sink files: {path} becomes a directory of files on each collecting host")
    if call.name == "seqfile":
        return {"path": path, "format": "text", "compression": "none"}
    return {
        "path": path,
        **(_format(call, 1, place, log) if len(call.args) > 1 else {"format": "text"}),
    }


def _syslog(call: Call, _stream: Stream, _place: Place, _log: Log) -> dict[str, Any]:
    return {"targets": [f"{call.text(0)}:{call.text(1, '514')}"], "framing": "newline"}


def _console(_call: Call, _stream: Stream, place: Place, log: Log) -> dict[str, Any]:
    log.differs(place, "sink console: it shows the first events of each batch, not all")
    return {}


def _nothing(_call: Call, _stream: Stream, _place: Place, _log: Log) -> dict[str, Any]:
    return {}


def _count(_call: Call, _stream: Stream, place: Place, log: Log) -> dict[str, Any]:
    log.differs(place, "sink noop: flumeng counts events itself (flumeng flow counters, metrics)")
    return {}


ROWS: Mapping[str, tuple[str, Build]] = {
    "null": ("noop", _nothing),
    "console": ("console", _console),
    "collectorSink": ("files", _collector),
    "dfs": ("files", _dfs(1)),
    "formatDfs": ("files", _dfs(1)),
    "customdfs": ("files", _dfs(1)),
    "escapedFormatDfs": ("files", _dfs(2)),
    "escapedCustomDfs": ("files", _dfs(2)),
    "text": ("files", _file),
    "seqfile": ("files", _file),
    "syslogTcp": ("syslog", _syslog),
    "counter": ("noop", _count),
    "counterHistory": ("noop", _count),
    "accumulator": ("noop", _count),
    "multigrep": ("noop", _count),
    "regexhisto": ("noop", _count),
    "regexhistospec": ("noop", _count),
    "ganglia": ("noop", _count),
}
UNKNOWN: Mapping[str, str] = {
    "irc": "flumeng does not speak IRC",
    "hbase": "write a table with the sink delta or iceberg, or HBase with spark or python",
    "attr2hbase": "write a table with the sink delta or iceberg, or HBase with spark or python",
    "elasticSearch": "use the sink elasticsearch, with the addresses that are not said here",
    "elasticSearchSink": "use the sink elasticsearch, with the addresses that are not said here",
}
