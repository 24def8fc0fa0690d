"""The sources of Flume NG that read files, or the output of a command."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flumeng_flume import commands, globs
from flumeng_flume.answers import (
    Answers,
    Differs,
    Elsewhere,
    Missing,
    Needless,
    Options,
    Setting,
    To,
    millis,
    positive,
    truth,
    whole_path,
)
from flumeng_flume.findings import Log
from flumeng_flume.ng.agents import Part
from flumeng_flume.ng.source_row import Row
from flumeng_flume.stream import Stream, quoted


def _tail_dir(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
    groups = part.first("filegroups")
    if groups is None:
        log.missing(part.type_location, "has no filegroups")
        return []
    paths: list[str] = []
    for name in groups.value.split():
        group = part.first(f"filegroups.{name}")
        if group is None:
            log.missing(groups.location, f"filegroups.{name} is not set")
            continue
        folder, _, pattern = whole_path(group, log).rpartition("/")
        glob, exact = globs.from_regex(pattern)
        paths.append(f"{globs.escaped(folder)}/{glob}")
        if exact:
            log.mapped(group.location, f"paths: {paths[-1]}")
        else:
            log.differs(
                group.location, f"paths: {paths[-1]}, which may match more files than {pattern}"
            )
        _headers_of_group(part, name, f"^{re.escape(folder)}/{pattern}$", stream, log)
    log.mapped(groups.location, "paths")
    options.set("paths", paths, groups)
    stream.headers.setdefault(part.get("fileHeaderKey", "file"), "attrs['path']")
    return [options]


def _headers_of_group(part: Part, group: str, pattern: str, stream: Stream, log: Log) -> None:
    for header, setting in part.under(f"headers.{group}.").items():
        before = stream.headers.get(header, "CAST(NULL AS STRING)")
        condition = f"attrs['path'] RLIKE {quoted(pattern)}"
        stream.headers[header] = f"if({condition}, {quoted(setting.value)}, {before})"
        log.mapped(setting.location, f"{header} is derived from attrs['path']")


def _spool(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
    folder, include = part.first("spoolDir"), part.first("includePattern")
    if folder is None:
        log.missing(part.type_location, "has no spoolDir")
        return []
    glob, exact = globs.from_regex(include.value) if include else ("*", True)
    if include is not None and exact:
        log.mapped(include.location, f"paths: {glob}")
    elif include is not None:
        log.differs(include.location, f"paths: {glob}, which may match more files")
    deep = "**/" if truth(part.get("recursiveDirectorySearch")) else ""
    within = f"{globs.escaped(whole_path(folder, log).rstrip('/'))}/{deep}"
    options.set("paths", [within + glob], folder)
    log.mapped(folder.location, f"paths: {options.values['paths'][0]}")
    _exclude(part, within, options, log)
    if (reader := part.first("deserializer")) is not None:
        if reader.value.upper() == "LINE":
            log.mapped(reader.location, "nothing to set: an event is a line")
        else:
            log.missing(reader.location, "an event is a line: convert the files, or send to http")
    stream.headers[part.get("fileHeaderKey", "file")] = "attrs['path']"
    name = part.get("basenameHeaderKey", "basename")
    stream.headers[name] = "regexp_extract(attrs['path'], '[^/]+$', 0)"
    return [options]


def _exclude(part: Part, within: str, options: Options, log: Log) -> None:
    """Exclude files that Flume has read, by their suffix, and those of ``ignorePattern`` if a glob
    expresses it exactly: a wider one would lose files."""
    suffix, ignored = part.first("fileSuffix"), part.first("ignorePattern")
    excluded = []
    if part.get("deletePolicy", "never").lower() == "never":
        excluded.append(f"{within}*{globs.escaped(suffix.value if suffix else '.COMPLETED')}")
        log.differs(
            suffix.location if suffix else part.type_location,
            f"exclude: {excluded[0]}, the files that Flume has read; flumeng renames none",
        )
    elif suffix is not None:
        log.differs(suffix.location, "files are not renamed when they are read")
    if ignored is not None:
        glob, exact = globs.from_regex(ignored.value)
        if exact:
            excluded.append(within + glob)
            log.mapped(ignored.location, f"exclude: {excluded[-1]}")
        else:
            log.missing(
                ignored.location, "no glob can express it: choose the files by paths and exclude"
            )
    if excluded:
        options.set("exclude", excluded)


def _exec(part: Part, options: Options, _stream: Stream, log: Log) -> list[Options]:
    command = part.first("command")
    if command is None:
        log.missing(part.type_location, "has no command")
        return []
    shell = part.first("shell")
    followed = commands.followed(command.value)
    if followed is not None:
        log.differs(
            command.location,
            f"source tail of {', '.join(followed.paths)}: it continues at its position after a "
            "restart, and follows rotation",
        )
        for name in ("shell", "restart", "restartThrottle"):
            if (setting := part.first(name)) is not None:
                log.mapped(setting.location, "nothing to set: no command runs any more")
        made = Options("tail")
        each = (Setting(command.location, path, path) for path in followed.paths)
        made.set("paths", [globs.escaped(whole_path(setting, log)) for setting in each], command)
        if not followed.from_beginning:
            made.set("start_from", "end", command)
        return [made]
    options.set("command", commands.words_of(command.value, shell.value if shell else ""), command)
    log.differs(
        command.location,
        "command: the policy of each node has to allow it, and it does not have Flume's "
        "environment",
    )
    if shell is not None:
        log.mapped(shell.location, "command")
    restart = part.first("restart")
    if restart is None or not truth(restart.value):
        options.set("mode", "once")
    if restart is not None:
        log.mapped(restart.location, f"mode: {options.values.get('mode', 'streaming')}")
    return [options]


_FILES: Answers = {
    "positionFile": Differs(
        "flumeng keeps its own positions: files that Flume has read are read again, "
        "unless start_from: end"
    ),
    "skipToEnd": To("start_from", lambda text: "end" if truth(text) else "beginning"),
    "idleTimeout": Needless("an idle file is closed after a minute"),
    "writePosInterval": Needless("positions are stored together with events"),
    "cachePatternMatching": Needless("folders are listed again when their times change"),
    "byteOffsetHeader": Differs("the offset of each line is in attrs['offset']"),
    "fileHeader": Differs("the path of each line is in attrs['path']"),
    "fileHeaderKey": Elsewhere(),
    "maxBatchCount": Needless("no file keeps others waiting"),
    "pollDelay": To("poll_seconds", millis),
    "inputCharset": Differs("bytes are passed on as they are; read them as that charset later"),
    "decodeErrorPolicy": Needless("bytes are passed on as they are"),
    "deserializer": Elsewhere(),
    "deserializer.maxLineLength": To("max_line_bytes", positive),
    "deserializer.*": Missing("an event is a line"),
}
ROWS: Mapping[str, Row] = {
    "exec": Row(
        "exec",
        {
            "command": Elsewhere(),
            "shell": Elsewhere(),
            "restart": Elsewhere(),
            "restartThrottle": Differs("it is started again after 1 s, 2 s and so on to a minute"),
            "logStdErr": Differs("flumeng status shows the standard error of a command that fails"),
        },
        _exec,
    ),
    "taildir": Row(
        "tail",
        {
            **_FILES,
            "filegroups": Elsewhere(),
            "filegroups.*": Elsewhere(),
            "headers.*": Elsewhere(),
        },
        _tail_dir,
    ),
    "spooldir": Row(
        "tail",
        {
            **_FILES,
            "spoolDir": Elsewhere(),
            "includePattern": Elsewhere(),
            "recursiveDirectorySearch": Elsewhere(),
            "basenameHeader": Differs("the path of each line is in attrs['path']"),
            "basenameHeaderKey": Elsewhere(),
            "fileSuffix": Elsewhere(),
            "deletePolicy": Differs("files are neither deleted nor renamed: use cron for that"),
            "ignorePattern": Elsewhere(),
            "trackerDir": Needless("positions are stored together with events"),
            "trackingPolicy": Needless("files are known by inode and content"),
            "consumeOrder": Differs("files are read at the same time"),
            "maxBackoff": Needless("senders wait for the journal"),
            "bufferMaxLines": Needless("has no meaning in Flume either"),
            "bufferMaxLineLength": To("max_line_bytes", positive),
        },
        _spool,
        "files may grow while they are read, and stay as they are: no suffix marks finished ones",
    ),
}
