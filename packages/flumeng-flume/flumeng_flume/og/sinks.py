"""The sinks of Flume OG that end a flow: a row for each name maps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flumeng_flume import escapes
from flumeng_flume.answers import Options, Setting
from flumeng_flume.drafts import Draft, label, valid
from flumeng_flume.findings import Location, Log
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
Build = Callable[[Call, Stream, Location, Log], dict[str, Any]]


def translate(call: Call, location: Location, stream: Stream, log: Log) -> Draft | None:
    """Translate a sink; None when the result is invalid. An unknown sink becomes files."""
    row = ROWS.get(call.name)
    if row is None:
        node = location.subject.partition(":")[0]
        path = f"/var/lib/flumeng/imported/{label(node)}/{label(call.name)}"
        log.missing(
            location,
            UNKNOWN.get(call.name, f"flumeng does not know the sink {call.name}")
            + f"; {path} keeps the events meanwhile",
        )
        return _draft("files", {"path": path}, location)
    name, build = row
    try:
        made = build(call, stream, location, log)
    except ValueError as error:
        log.missing(location, str(error))
        return None
    draft = _draft(name, made, location)
    if not valid(draft, log, stream.filters):
        return None
    if not log.has(location):
        log.mapped(location, f"sink {name}")
    return draft


def forward(targets: list[str], location: Location, log: Log) -> Draft:
    """Return a sink that sends to nodes that are not imported with this one."""
    log.differs(
        location,
        f"no node here receives it: sink tcp to {', '.join(targets)}, framing length-prefixed, for "
        "the source tcp of another flumeng",
    )
    return _draft("tcp", {"targets": targets, "framing": "length-prefixed"}, location)


def _draft(name: str, options: dict[str, Any], location: Location) -> Draft:
    draft = Draft("sink", name, location, Options())
    seconds = options.pop("seconds", None)
    for option, value in options.items():
        draft.options.set(option, value)
    if seconds:
        draft.batch_seconds = (seconds, Setting(location, str(seconds), str(seconds)))
    return draft


def _directory(text: str, stream: Stream, location: Location, log: Log) -> str:
    path, wrong = escapes.translate(text.rstrip("/"), stream)
    for why in wrong:
        log.missing(location, why)
    if escapes.TIMED.search(path):
        log.differs(location, "times of a path are in UTC, and those of the events' receipt")
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path if path.startswith("/") else "/" + path
    return (
        f"{scheme}://"
        + ("/" if rest.startswith("/") else "")
        + "/".join(word for word in rest.split("/") if word)
    )


def _format(call: Call, number: int, location: Location, log: Log) -> dict[str, Any]:
    value = call.args[number] if number < len(call.args) else DEFAULT_FORMAT
    name = value.name if isinstance(value, Call) else str(value)
    file_format = FORMATS.get(name)
    if file_format is None:
        log.missing(location, f"flumeng does not know the format {name}: json is used")
        return {"format": "json", "compression": "none"}
    if file_format[1]:
        log.differs(location, f"format: {file_format[0]}; {file_format[1]}")
    codec = value.args[0] if isinstance(value, Call) and value.args else None
    made: dict[str, Any] = {"format": file_format[0], "compression": "none"}
    if codec is not None:
        made["compression"] = "gzip" if str(codec).lower().startswith(("gz", "def")) else "zstd"
        log.differs(location, f"compression: {made['compression']}")
    return made


def _collector(call: Call, stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    path = _directory(call.text(0), stream, location, log)
    log.differs(location, f"sink files, path: {path}; files have names of flumeng")
    milliseconds = call.text(2, "30000")
    seconds = max(1, int(milliseconds) // 1000) if milliseconds.isdecimal() else 30
    return {"path": path, "seconds": seconds, **_format(call, 3, location, log)}


def _dfs(number: int) -> Build:
    """Return a builder for a sink like dfs; argument ``number`` is the format."""

    def build(call: Call, stream: Stream, location: Location, log: Log) -> dict[str, Any]:
        path = _directory(call.text(0), stream, location, log)
        log.differs(location, f"sink files, path: {path}; files have names of flumeng")
        if call.name == "dfs":
            log.differs(location, "format: text; flumeng writes no sequence files")
            return {"path": path, "format": "text", "compression": "none"}
        return {"path": path, **_format(call, number, location, log)}

    return build


def _file(call: Call, stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    path = _directory(call.text(0), stream, location, log)
    log.differs(
        location, f"sink files: {path} becomes a directory of files on each collecting host"
    )
    if call.name == "seqfile":
        return {"path": path, "format": "text", "compression": "none"}
    return {
        "path": path,
        **(_format(call, 1, location, log) if len(call.args) > 1 else {"format": "text"}),
    }


def _syslog(call: Call, _stream: Stream, _location: Location, _log: Log) -> dict[str, Any]:
    return {"targets": [f"{call.text(0)}:{call.text(1, '514')}"], "framing": "newline"}


def _console(_call: Call, _stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    log.differs(location, "sink console: it shows the first events of each batch, not all")
    return {}


def _nothing(_call: Call, _stream: Stream, _location: Location, _log: Log) -> dict[str, Any]:
    return {}


def _count(_call: Call, _stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    log.differs(
        location, "sink noop: flumeng counts events itself (flumeng flow counters, metrics)"
    )
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
    "elasticSearch": "use the sink elasticsearch, and add its addresses",
    "elasticSearchSink": "use the sink elasticsearch, and add its addresses",
}
