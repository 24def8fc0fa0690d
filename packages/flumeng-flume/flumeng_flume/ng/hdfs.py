"""The sinks of Flume NG that write files: HDFS and file_roll."""

from __future__ import annotations

import re
from typing import Any

from flumeng_flume import escapes
from flumeng_flume.answers import (
    Answers,
    Differs,
    Elsewhere,
    Missing,
    Needless,
    Options,
    Setting,
    positive,
    truth,
    unresolved,
    whole,
    whole_path,
)
from flumeng_flume.drafts import label
from flumeng_flume.findings import Log
from flumeng_flume.ng.agents import Part
from flumeng_flume.stream import Stream

BATCH_SECONDS = "batch.seconds"
"""An option of the flow among those of the sink; it is moved when the flow is made."""
_DEFAULT_SECONDS = 30
_SECONDS_BY_SIZE = 600
"""The interval of batches where Flume closes a file by its size alone."""
_NAMES = Differs("files have names of flumeng, and show when they are whole")
_OPEN = Needless("files are closed with each batch")
_WITHOUT_HOST = re.compile(r"(?P<scheme>hdfs|viewfs|file):/(?!/)")
_SERIALIZERS = {
    "text": ("text", ""),
    "header_and_text": ("json", "a line is JSON with all columns"),
    "avro_event": ("avro", "the schema is that of flumeng's columns; needs flumeng[avro]"),
    "avroeventserializer$builder": (
        "avro",
        "bodies in Avro are not unpacked, they are the column body; needs flumeng[avro]",
    ),
    "headerandbodytexteventserializer$builder": ("json", "a line is JSON with all columns"),
    "bodytexteventserializer$builder": ("text", ""),
    "flumeeventavroeventserializer$builder": (
        "avro",
        "the schema is that of flumeng's columns; needs flumeng[avro]",
    ),
}


HDFS: Answers = {
    "hdfs.path": Elsewhere(),
    "hdfs.filePrefix": Elsewhere(),
    "hdfs.fileSuffix": _NAMES,
    "hdfs.inUsePrefix": _NAMES,
    "hdfs.inUseSuffix": _NAMES,
    "hdfs.emptyInUseSuffix": _NAMES,
    "hdfs.rollInterval": Elsewhere(),
    "hdfs.rollSize": Elsewhere(),
    "hdfs.rollCount": Elsewhere(),
    "hdfs.idleTimeout": _OPEN,
    "hdfs.batchSize": Needless("flumeng sizes batches itself"),
    "hdfs.txnEventMax": Needless("flumeng sizes batches itself"),
    "hdfs.codeC": Elsewhere(),
    "hdfs.fileType": Elsewhere(),
    "hdfs.maxOpenFiles": _OPEN,
    "hdfs.minBlockReplicas": Needless("a replica that is missing closes no file"),
    "hdfs.writeFormat": Elsewhere(),
    "hdfs.threadsPoolSize": Needless("place.collect.tasks sets the number of writing tasks"),
    "hdfs.rollTimerPoolSize": Needless("place.collect.tasks sets the number of writing tasks"),
    "hdfs.kerberosPrincipal": Differs("the collector's user has its own Kerberos ticket: kinit"),
    "hdfs.kerberosKeytab": Differs("the collector's user has its own Kerberos ticket: kinit"),
    "hdfs.proxyUser": Missing("run the nodes that collect as that user"),
    "hdfs.round": Elsewhere(),
    "hdfs.roundValue": Elsewhere(),
    "hdfs.roundUnit": Elsewhere(),
    "hdfs.timeZone": Elsewhere(),
    "hdfs.useLocalTimeStamp": Elsewhere(),
    "hdfs.useRawLocalFileSystem": Differs("a path without hdfs:// is on the host that collects"),
    "hdfs.closeTries": _OPEN,
    "hdfs.retryInterval": _OPEN,
    "hdfs.callTimeout": Needless("batch.timeout_seconds covers a whole batch"),
    "serializer": Elsewhere(),
    "serializer.*": Elsewhere(),
    "hdfs.serializer": Elsewhere(),
    "hdfs.serializer.*": Elsewhere(),
    "hdfs.append": Missing("files are never appended to: a reader may rely on them"),
    "hdfs.appendTimeout": Needless("files are never appended to"),
}


def build_hdfs(part: Part, options: Options, stream: Stream, log: Log) -> Options | None:
    path = part.first("hdfs.path")
    if path is None:
        log.missing(part.type_location, "has no hdfs.path")
        return None
    if (name := unresolved(path.value)) is not None:
        log.missing(path.location, f"the value of {name} is not known: set it, import again")
        return None
    _set_path(part, path, options, stream, log)
    _set_format(part, options, log)
    _set_compression(part, options, log)
    _set_roll(part, options, log, "hdfs.rollInterval")
    return options


def build_file_roll(part: Part, options: Options, _stream: Stream, log: Log) -> Options | None:
    path = part.first("sink.directory")
    if path is None:
        log.missing(part.type_location, "has no sink.directory")
        return None
    if (name := unresolved(path.value)) is not None:
        log.missing(path.location, f"the value of {name} is not known: set it, import again")
        return None
    options.set("path", whole_path(path, log).rstrip("/"), path)
    log.differs(
        path.location, f"path: {options.values['path']}, on each host that collects the flow"
    )
    options.set("format", "text")
    _set_serializer(part.first("sink.serializer", "serializer"), options, log)
    _set_text(part, options, log)
    options.set("compression", "none")
    _set_roll(part, options, log, "sink.rollInterval")
    return options


def _set_path(part: Part, setting: Setting, options: Options, stream: Stream, log: Log) -> None:
    rounding = _rounding(part, log)
    url, keys = _without_keys(setting.value)
    text, wrong = escapes.translate(url.rstrip("/"), stream, rounding)
    notes = []
    text = _as_url(text)
    if text.startswith("hdfs:///"):
        notes.append("add the name node, unless Hadoop's configuration has it")
    scheme, separator, rest = text.partition("://")
    host, _, inside = rest.partition("/")
    text = f"{scheme}{separator}{host}/" + "/".join(word for word in inside.split("/") if word)
    zone = part.first("hdfs.timeZone")
    utc = zone is not None and zone.value.upper() in ("UTC", "GMT", "ETC/UTC", "ETC/GMT", "Z")
    if zone is not None and utc:
        log.mapped(zone.location, "times are in UTC")
    elif zone is not None:
        log.missing(zone.location, "times of a path are in UTC")
    elif escapes.TIMED.search(setting.value):
        notes.append("its times are in UTC, and not in the zone of a host")
    if (local := part.first("hdfs.useLocalTimeStamp")) is not None:
        if (
            truth(local.value)
            and stream.headers.get("timestamp") == "ts"
            and "parse" in str(stream.filters)
        ):
            log.differs(local.location, "times are those that parse reads from an event")
        else:
            log.mapped(local.location, "ts is the time of receipt")
    for why in wrong:
        log.missing(setting.location, why)
    options.set("path", text, setting)
    if keys:
        stem = label(f"{part.agent}-{part.name}")
        names = {word: f"${{secret:{stem}-{label(word)}}}" for word in ("access_key", "secret_key")}
        options.set("credentials", names)
        notes.append(f"put its keys into the secrets {stem}-access-key and {stem}-secret-key")
    if notes:
        log.differs(setting.location, f"path: {text}; {'; '.join(notes)}")
    else:
        log.mapped(setting.location, f"path: {text}")
    _report_prefix(part, log)


def _as_url(path: str) -> str:
    """Return a path as a URL; ``hdfs:/a`` and ``/a`` name no host, and mean that of Hadoop's
    configuration."""
    if (bare := _WITHOUT_HOST.match(path)) is not None:
        return f"{bare['scheme']}:///{path[bare.end() :]}"
    return path if "://" in path else "hdfs:///" + path.lstrip("/")


def _report_prefix(part: Part, log: Log) -> None:
    """Report that prefixes are not used; one with escapes also separates events, unlike names of
    files in flumeng."""
    prefix = part.first("hdfs.filePrefix")
    if prefix is not None and "%" in prefix.value:
        log.missing(
            prefix.location,
            "files mix the events that it separates: put the header or time into the path",
        )
    elif prefix is not None:
        log.differs(prefix.location, "files have names of flumeng, and show when they are whole")


def _without_keys(path: str) -> tuple[str, bool]:
    """Return the path of a store without access keys, and whether there were any."""
    match = re.match(r"(?P<scheme>s3[an]?://)[^/@]+:[^@]*@(?P<rest>.*)", path, re.DOTALL)
    return (match["scheme"] + match["rest"], True) if match else (path, False)


def _rounding(part: Part, log: Log) -> escapes.Rounding | None:
    rounds, value = part.first("hdfs.round"), part.first("hdfs.roundValue")
    unit = part.first("hdfs.roundUnit")
    settings = [setting for setting in (rounds, value, unit) if setting is not None]
    if rounds is None or not truth(rounds.value):
        for setting in settings:
            log.mapped(setting.location, "nothing to set: times are not rounded")
        return None
    try:
        number = positive(value.value) if value is not None else 1
    except ValueError as error:
        log.missing(value.location if value else rounds.location, str(error))
        return None
    word = unit.value.lower() if unit is not None else "second"
    units: dict[str, escapes.Unit] = {"second": "second", "minute": "minute", "hour": "hour"}
    if word not in units:
        log.missing(unit.location if unit else rounds.location, "expected second, minute or hour")
        return None
    for setting in settings:
        log.mapped(
            setting.location, "path: of coarser times, with columns for those that are rounded"
        )
    return escapes.Rounding(units[word], number)


def _set_format(part: Part, options: Options, log: Log) -> None:
    options.set("format", "text")
    written = part.first("hdfs.writeFormat")
    kind = part.first("hdfs.fileType")
    name = kind.value.lower() if kind is not None else "sequencefile"
    if name == "sequencefile":
        log.differs(
            kind.location if kind is not None else part.type_location,
            "format: text; flumeng writes no sequence files (SequenceFile is Flume's default)",
        )
    elif kind is not None and name in ("datastream", "compressedstream"):
        log.mapped(kind.location, "format: text")
    elif kind is not None:
        log.missing(kind.location, "expected SequenceFile, DataStream or CompressedStream")
    if written is not None:
        if name == "sequencefile":
            log.differs(written.location, "format: text")
        else:
            log.mapped(written.location, "format: text")
    _set_serializer(part.first("serializer", "hdfs.serializer"), options, log)
    _set_text(part, options, log)


def _set_serializer(setting: Setting | None, options: Options, log: Log) -> None:
    if setting is None:
        return
    name = setting.value.lower()
    format_ = _SERIALIZERS.get(name) or _SERIALIZERS.get(name.rpartition(".")[2])
    if format_ is None:
        log.missing(
            setting.location, "unknown to flumeng: choose another format, or the sink python"
        )
        return
    options.set("format", format_[0], setting)
    if format_[1]:
        log.differs(setting.location, f"format: {format_[0]}; {format_[1]}")
    else:
        log.mapped(setting.location, f"format: {format_[0]}")


def _set_text(part: Part, options: Options, log: Log) -> None:
    for name, setting in part.settings.items():
        if "serializer." not in name:
            continue
        if name.endswith("appendNewline"):
            if truth(setting.value) or options.values["format"] != "text":
                log.mapped(setting.location, "nothing to set: each event is a line")
            else:
                log.missing(setting.location, "each event is a line of its own")
        elif name.endswith("compressionCodec"):
            log.differs(setting.location, "set compression")
        else:
            log.missing(setting.location, "formats have no such option")


_CODECS: dict[str, tuple[str, str]] = {
    "gzip": ("gzip", ""), "gz": ("gzip", ""), "gzipcodec": ("gzip", ""),
    "deflate": ("gzip", "flumeng does not write deflate"),
    "defaultcodec": ("gzip", "flumeng does not write deflate"),
    "bzip2": ("zstd", "flumeng does not write bzip2"),
    "bzip2codec": ("zstd", "flumeng does not write bzip2"),
    "lzo": ("zstd", "flumeng does not write LZO"), "lzop": ("zstd", "flumeng does not write LZO"),
    "lzopcodec": ("zstd", "flumeng does not write LZO"),
    "snappy": ("zstd", "flumeng writes Snappy in Parquet and ORC alone"),
    "snappycodec": ("zstd", "flumeng writes Snappy in Parquet and ORC alone"),
    "zstd": ("zstd", ""), "zstandardcodec": ("zstd", ""),
}  # fmt: skip


def _set_compression(part: Part, options: Options, log: Log) -> None:
    codec = part.first("hdfs.codeC")
    if codec is None:
        options.set("compression", "none")
        return
    codec_format = _CODECS.get(codec.value.rpartition(".")[2].lower())
    if codec_format is None:
        log.missing(codec.location, "expected a codec that flumeng knows: gzip, zstd")
        options.set("compression", "zstd")
        return
    kind = part.get("hdfs.fileType", "SequenceFile").lower()
    if kind == "datastream":
        options.set("compression", "none")
        log.mapped(codec.location, "compression: none, since a DataStream is not compressed")
        return
    options.set("compression", codec_format[0], codec)
    if codec_format[1]:
        log.differs(codec.location, f"compression: {codec_format[0]}; {codec_format[1]}")
    else:
        log.mapped(codec.location, f"compression: {codec_format[0]}")


def _set_roll(part: Part, options: Options, log: Log, interval: str) -> None:
    if interval not in part.settings:
        usual = Setting(part.type_location, str(_DEFAULT_SECONDS), str(_DEFAULT_SECONDS))
        options.set(BATCH_SECONDS, _DEFAULT_SECONDS, usual)
    for name, setting in (
        (name, part.settings[name])
        for name in (interval, "hdfs.rollSize", "hdfs.rollCount")
        if name in part.settings
    ):
        try:
            number = whole(setting.value)
        except ValueError as error:
            log.missing(setting.location, f"{error}; found {setting.value}")
            continue
        if name == "hdfs.rollCount":
            _count(setting, number, log)
        elif number <= 0:
            _unbounded(setting, name == interval, options, log)
        elif name == interval:
            options.set(BATCH_SECONDS, number, setting)
        else:
            _set_bytes(setting, number, options, log)


def _count(setting: Setting, number: int, log: Log) -> None:
    if number > 0:
        log.differs(
            setting.location, "files are closed by time (batch.seconds) and size (roll.bytes)"
        )
    else:
        log.mapped(
            setting.location, "nothing to set: files are not closed by their number of events"
        )


def _unbounded(setting: Setting, is_time: bool, options: Options, log: Log) -> None:
    if is_time:
        options.set(BATCH_SECONDS, _SECONDS_BY_SIZE, setting)
        log.differs(
            setting.location,
            f"batch.seconds: {_SECONDS_BY_SIZE}; a batch is a file: raise it for fewer files",
        )
    else:
        log.differs(setting.location, "roll.bytes is 512 MiB; a batch is a file, rarely that large")


def _set_bytes(setting: Setting, number: int, options: Options, log: Log) -> None:
    kept: Any = min(max(number, 2**20), 2**32)
    options.set("roll.bytes", kept, setting)
    if kept == number:
        log.mapped(setting.location, f"roll.bytes: {kept}")
    else:
        log.differs(setting.location, f"roll.bytes: {kept}; flumeng takes 1 MiB to 4 GiB")
