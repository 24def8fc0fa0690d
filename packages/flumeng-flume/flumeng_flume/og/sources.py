"""The sources of Flume OG: a row for each name maps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flumeng_flume import commands, globs
from flumeng_flume.answers import Options
from flumeng_flume.drafts import Draft, valid
from flumeng_flume.findings import Location, Log
from flumeng_flume.og.tree import Call
from flumeng_flume.stream import Stream

HOPS = {
    "collectorSource": 35853, "autoCollectorSource": 0, "logicalSource": 0, "rpcSource": 0,
    "thriftSource": 0, "avroSource": 0,
}  # fmt: skip
"""Sources that get events from other nodes, with their default ports."""

Build = Callable[[Call, Stream, Location, Log], dict[str, Any] | str]
"""Returns the options of flumeng's source, or a text with the reason why there is none."""


def translate(call: Call, location: Location, stream: Stream, log: Log) -> Draft | None:
    """Translate a source; None if the node has none. A source http stands in for an unknown one."""
    if call.name == "null":
        log.mapped(location, "nothing to set: a node without a source")
        return None
    row = ROWS.get(call.name)
    name, build = row or ("", lambda *_: f"flumeng does not know the source {call.name}")
    try:
        made = build(call, stream, location, log)
    except ValueError as error:
        made = str(error)
    if isinstance(made, str):
        log.missing(location, f"{made}; a source http stands here, to which a program can send")
        return _draft("http", {"listen": "0.0.0.0:8080"}, location)
    if "paths" in made:
        name = "tail"
    for word in call.kwargs:
        log.missing(location, f"{call.name}: {word} has no meaning for the source {name}")
    draft = _draft(name, made, location)
    if not valid(draft, log):
        return None
    if not log.has(location):
        log.mapped(location, f"source {name}")
    return draft


def _draft(name: str, options: dict[str, Any], location: Location) -> Draft:
    draft = Draft("source", name, location, Options())
    for option, value in options.items():
        draft.options.set(option, value)
    return draft


def listening(call: Call, location: Location, log: Log) -> Draft:
    """Return a source for a node that receives from nodes that are not imported with it."""
    number = call.text(0) or str(HOPS[call.name] or 35853)
    log.differs(
        location,
        "no node here sends to it: source tcp, framing length-prefixed, to which another flumeng "
        "sends with the sink tcp",
    )
    return _draft("tcp", {"listen": f"0.0.0.0:{number}", "framing": "length-prefixed"}, location)


def _path(text: str, location: Location, log: Log) -> str:
    if not text:
        raise ValueError("expected a file")
    if text.startswith("/"):
        return text
    log.missing(location, f"is relative to Flume's working directory: correct /{text}")
    return "/" + text


def _tail(call: Call, _stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    made: dict[str, Any] = {"paths": [globs.escaped(_path(call.text(0), location, log))]}
    if call.text(1) == "true" or call.kwargs.get("startFromEnd") is True:
        made["start_from"] = "end"
    return made


def _multitail(call: Call, _stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    paths = [globs.escaped(_path(call.text(n), location, log)) for n in range(len(call.args))]
    return {"paths": list(dict.fromkeys(paths))}


def _text(call: Call, stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    log.differs(location, "source tail: the file is followed, and not only read once")
    return {"paths": _tail(Call("tail", call.args[:1]), stream, location, log)["paths"]}


def _tail_dir(call: Call, _stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    folder = globs.escaped(_path(call.text(0), location, log)).rstrip("/")
    pattern = call.text(1, ".*")
    glob, exact = globs.from_regex(pattern)
    deep = "**/" if call.text(3, "0") not in ("0", "") else ""
    made: dict[str, Any] = {"paths": [f"{folder}/{deep}{glob}"]}
    if not exact:
        log.differs(
            location, f"paths: {made['paths'][0]}, which may match more files than {pattern}"
        )
    if call.text(2) == "true":
        made["start_from"] = "end"
    return made


def _syslog(protocol: str) -> Build:
    def build(call: Call, stream: Stream, location: Location, log: Log) -> dict[str, Any]:
        columns = ("facility", "severity", "app", "procid", "msgid", "structured", "message")
        stream.parse(columns, format="syslog")
        stream.headers |= {"syslogfacility": "facility", "syslogseverity": "severity"}
        log.differs(location, "source syslog: the body keeps its priority, and parse makes columns")
        made = {"listen": f"0.0.0.0:{call.text(0, '514')}"}
        return made if protocol == "tcp" else {**made, "protocol": "udp"}

    return build


def _exec(call: Call, _stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    command = call.text(0)
    if (followed := commands.followed(command)) is not None:
        log.differs(location, "source tail: it continues at its position after a restart")
        made: dict[str, Any] = {"paths": [globs.escaped(path) for path in followed.paths]}
        return made if followed.from_beginning else {**made, "start_from": "end"}
    made = {"command": commands.words_of_shell(command)}
    aggregate, restart = call.text(1) == "true", call.text(2) == "true"
    milliseconds = call.text(3, "0")
    if call.name == "execPeriodic":
        aggregate, restart, milliseconds = True, True, call.text(1, "60000")
    if restart and milliseconds not in ("", "0"):
        made |= {"mode": "periodic", "every_seconds": int(milliseconds) / 1000}
    elif not restart:
        made["mode"] = "once"
    if aggregate:
        log.missing(location, "each line is an event, not the whole output of the command")
    log.differs(location, "source exec: the policy of each node has to allow the command")
    return made


def _generate(call: Call, _stream: Stream, location: Location, log: Log) -> dict[str, Any]:
    log.differs(location, "source generate: a body is the seed, the number and filling")
    size = max(32, int(call.text(1, "32")))
    return {"events_per_second": 0, "count": int(call.text(0, "0")), "bytes": size}


def _none(why: str) -> Build:
    return lambda _call, _stream, _location, _log: why


ROWS: Mapping[str, tuple[str, Build]] = {
    "tail": ("tail", _tail),
    "multitail": ("tail", _multitail),
    "tailDir": ("tail", _tail_dir),
    "text": ("tail", _text),
    "syslogTcp": ("syslog", _syslog("tcp")),
    "syslogTcp1": ("syslog", _syslog("tcp")),
    "syslogUdp": ("syslog", _syslog("udp")),
    "exec": ("exec", _exec),
    "execStream": ("exec", _exec),
    "execPeriodic": ("exec", _exec),
    "synth": ("generate", _generate),
    "asciisynth": ("generate", _generate),
    "nonlsynth": ("generate", _generate),
    "synthrndsize": ("generate", _generate),
    "console": ("", _none("a node has no keyboard")),
    "stdin": ("", _none("a node has no standard input")),
    "seqfile": ("", _none("flumeng reads no sequence files")),
    "scribe": ("", _none("flumeng does not speak Scribe")),
    "twitter": ("", _none("Twitter's former API no longer exists")),
    "irc": ("", _none("flumeng does not speak IRC")),
    "report": ("", _none("a node serves its metrics itself, in Prometheus' format")),
}
