"""The options of every source.

``claims`` are what only one source can have, ``needs`` is what a node may refuse (``Need``),
``arrival`` is what may happen to an event before it is accepted. ``keeps_place``: beside its events
it journals where it is, from which it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flumeng.config.declared import Guarantee, SourceOptions
from flumeng.connectors.network.senders import NO_LIMITS, PeerLimits, SenderAuth
from flumeng.connectors.network.server_tls import Tls
from flumeng.connectors.polls.options import Answers, KeepsAnswers, Schedule
from flumeng.connectors.tail.encodings import UTF_8, check_encoding
from flumeng.connectors.tail.file_globs import check_file_glob, expand, matches
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.quantities import check_address

_MAX_LINE_DOC = "A longer line is cut there, marked with the attribute `truncated` and counted."
_CONNECTIONS_DOC = (
    "TCP connections over this number, in each ingest worker, are closed at once and counted. An "
    "idle one takes 4 KiB of memory, with TLS 50 KiB."
)
_IDLE_DOC = "A TCP connection on which nothing arrives for so long is closed; by default none is."
_LISTEN_DOC = "The address to listen on. Port 0 takes a free one."
_TLS_DOC = "Serve over TLS."
_PER_PEER_DOC = "What one peer address may have, so that it does not crowd out others."
_STREAM_ARRIVAL = (
    "senders are not answered: what is under way when a connection or the worker breaks is lost, "
    "unless they send it again"
)
_DATAGRAM_ARRIVAL = (
    "what the network or a full buffer of the kernel drops is lost, and what comes while no worker "
    "listens"
)
_FRAMING_DOC = (
    "newlines, a length of four bytes (highest first) before each, or its length in digits and a "
    "space (RFC 6587)."
)


def _max_line_bytes() -> Any:
    return option(doc=_MAX_LINE_DOC, unit="bytes", minimum=64, maximum=2**24, default=2**20)


def _max_connections() -> Any:
    return option(doc=_CONNECTIONS_DOC, minimum=1, maximum=10**6, default=10_000)


def _idle_seconds() -> Any:
    return option(doc=_IDLE_DOC, unit="seconds", minimum=0.1, maximum=604_800, default=None)


def _claim(protocol: str, listen: str) -> Iterator[tuple[str, str]]:
    """One address and port has one source; port 0 is never the same."""
    if not listen.endswith(":0"):
        yield "listen", f"{protocol} {listen}"


def _listening(listen: str, tls: Tls | None) -> Iterator[Need]:
    yield "listen", listen
    if tls is not None:
        for path in tls.files():
            yield "path", path


@dataclass(frozen=True)
class Syslog(SourceOptions):
    """Receives syslog messages (RFC 5424 and RFC 3164) over TCP, TLS (RFC 5425) or UDP.

    An event's body is the message as received, without its framing. Attributes: `source`, `peer`,
    `client`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.network.syslog:SyslogSource"

    listen: str = option(
        doc=_LISTEN_DOC,
        check=check_address,
        example='"0.0.0.0:5514"',
    )
    protocol: Literal["tcp", "udp"] = option(doc="The transport.", default="tcp")
    framing: Literal["auto", "newline", "nul", "octet-counted"] = option(
        doc="How TCP messages are told apart (RFC 6587); `auto` looks at the first byte sent. With "
        "`nul` a message may have several lines: Python's `SysLogHandler` ends each with NUL.",
        default="auto",
    )
    max_line_bytes: int = _max_line_bytes()
    max_connections: int = _max_connections()
    idle_seconds: float | None = _idle_seconds()
    per_peer: PeerLimits = option(doc=_PER_PEER_DOC, default=NO_LIMITS)
    tls: Tls | None = option(doc=_TLS_DOC, default=None)

    def claims(self) -> Iterator[tuple[str, str]]:
        return _claim(self.protocol, self.listen)

    def needs(self) -> Iterator[Need]:
        return _listening(self.listen, self.tls)

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.tls is not None and self.protocol == "udp":
            yield "tls", "needs the protocol tcp"
        if self.per_peer != NO_LIMITS and self.protocol == "udp":
            yield "per_peer", "needs the protocol tcp: who sent a datagram is not known"

    def arrival(self) -> str:
        return _STREAM_ARRIVAL if self.protocol == "tcp" else _DATAGRAM_ARRIVAL


@dataclass(frozen=True)
class Tcp(SourceOptions):
    """Receives lines, or messages with their lengths, over TCP or TLS.

    Attributes: `source`, `peer`, `client`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.network.sockets:TcpSource"

    listen: str = option(doc=_LISTEN_DOC, check=check_address, example='"0.0.0.0:5140"')
    framing: Literal["newline", "length-prefixed", "octet-counted"] = option(
        doc=f"How messages are told apart: {_FRAMING_DOC}", default="newline"
    )
    max_line_bytes: int = _max_line_bytes()
    max_connections: int = _max_connections()
    idle_seconds: float | None = _idle_seconds()
    per_peer: PeerLimits = option(doc=_PER_PEER_DOC, default=NO_LIMITS)
    tls: Tls | None = option(doc=_TLS_DOC, default=None)

    def claims(self) -> Iterator[tuple[str, str]]:
        return _claim("tcp", self.listen)

    def needs(self) -> Iterator[Need]:
        return _listening(self.listen, self.tls)

    def arrival(self) -> str:
        return _STREAM_ARRIVAL


@dataclass(frozen=True)
class Udp(SourceOptions):
    """Receives datagrams. Attributes: `source`, `peer`."""

    implementation: ClassVar[str] = "flumeng.connectors.network.sockets:UdpSource"

    listen: str = option(doc=_LISTEN_DOC, check=check_address, example='"0.0.0.0:5140"')
    framing: Literal["datagram", "newline", "length-prefixed", "octet-counted"] = option(
        doc=f"What a datagram holds: one message, or several, by {_FRAMING_DOC}",
        default="datagram",
    )
    max_line_bytes: int = _max_line_bytes()

    def claims(self) -> Iterator[tuple[str, str]]:
        return _claim("udp", self.listen)

    def needs(self) -> Iterator[Need]:
        return _listening(self.listen, None)

    def arrival(self) -> str:
        return _DATAGRAM_ARRIVAL


@dataclass(frozen=True)
class Http(SourceOptions):
    """Receives events in the bodies of POST requests, and answers 200 once they are durable, or as
    `ack` says.

    JSON arrays (`application/json`), lines of JSON (`application/x-ndjson`) or, with any other
    content type, lines; plain or packed with gzip or zstd. Attributes: `source`, `peer`, `client`,
    `path`, `content_type`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.http.source:HttpSource"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"acknowledging"})

    listen: str = option(doc=_LISTEN_DOC, check=check_address, example='"0.0.0.0:8080"')
    max_body_bytes: int = option(
        doc="A larger body, also once it is unpacked, is refused with 413.",
        unit="bytes",
        minimum=1024,
        maximum=2**26,
        default=2**22,
    )
    max_line_bytes: int = _max_line_bytes()
    ack: Literal["received", "journaled", "delivered"] = option(
        doc="When a request is answered with 200: once it is read (`received`), once its events "
        "are as durable as the flow says (`journaled`), or once each of them is in all sinks of "
        "the flow, was dropped by a filter, or is in the dead letters (`delivered`).",
        default="journaled",
    )
    ack_timeout_seconds: float = option(
        doc="With `delivered`, a request whose events are journaled and not delivered for so long "
        "is answered with 504. They will be delivered; a sender that repeats them doubles them.",
        unit="seconds",
        minimum=0.1,
        maximum=3600,
        default=30.0,
    )
    auth: SenderAuth | None = option(doc="Who may send; by default everybody may.", default=None)
    per_peer: PeerLimits = option(doc=_PER_PEER_DOC, default=NO_LIMITS)
    tls: Tls | None = option(doc=_TLS_DOC, default=None)

    @property
    def delivered_within_seconds(self) -> float | None:
        """So long it waits for deliveries; None when it does not."""
        return self.ack_timeout_seconds if self.ack == "delivered" else None

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.auth is not None:
            for name, message in self.auth.problems_with(self.tls):
                yield f"auth.{name}".rstrip("."), message

    def claims(self) -> Iterator[tuple[str, str]]:
        return _claim("tcp", self.listen)

    def needs(self) -> Iterator[Need]:
        return _listening(self.listen, self.tls)

    def arrival(self) -> str:
        if self.ack == "received":
            return (
                "senders are answered 200 before their events are accepted: what is not accepted "
                "when the worker breaks is lost"
            )
        when = ", once the sinks have it" if self.ack == "delivered" else ""
        return (
            f"nothing is lost that senders repeat until they are answered 200{when}; repeated is "
            "doubled"
        )


@dataclass(frozen=True)
class Tail(SourceOptions):
    """Follows files that grow, through rotation by rename and by copy and truncate.

    It goes on where it was after any restart: each line is taken exactly once. Attributes:
    `source`, `path`, `inode`, `offset`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.tail.source:TailSource"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    keeps_place: ClassVar[bool] = True
    paths: tuple[str, ...] = option(
        doc="The files, as absolute globs. `**` stands for any folders, `{a,b}` for either. Files "
        "that appear later are found too.",
        minimum=1,
        check=check_file_glob,
        example='["/var/log/app/*.log"]',
    )
    exclude: tuple[str, ...] = option(
        doc="Files that are not followed although `paths` means them, as absolute globs.",
        check=check_file_glob,
        example='["/var/log/app/debug*.log"]',
        default=(),
    )
    encoding: str = option(
        doc="How the files are encoded: `utf-8`, `utf-16`, `latin-1`, `windows-1252` and others "
        "that Python knows. Bodies are UTF-8. A byte order mark is taken off, and one of UTF-16 "
        "counts for more than `utf-8`.",
        check=check_encoding,
        default=UTF_8,
    )
    last_line_seconds: float = option(
        doc="The last line of a file needs no newline when the file has not changed for so long. "
        "0: a line always waits for its newline, or until its file is renamed or deleted.",
        unit="seconds",
        minimum=0,
        maximum=604_800,
        default=3600,
    )
    start_from: Literal["beginning", "end"] = option(
        doc="Where to start in a file that was there before the flow.", default="beginning"
    )
    max_line_bytes: int = _max_line_bytes()
    poll_seconds: float = option(
        doc="How often to look for new lines and files.",
        unit="seconds",
        minimum=0.01,
        maximum=3600,
        default=0.1,
    )

    def claims(self) -> Iterator[tuple[str, str]]:
        for index, path in enumerate(self.paths):
            for one in expand(path):
                yield f"paths[{index}]", one

    def needs(self) -> Iterator[Need]:
        for path in self.paths:
            for one in expand(path):
                yield "path", one

    def problems(self) -> Iterator[tuple[str, str]]:
        excluded = {one for path in self.exclude for one in expand(path)}
        for index, path in enumerate(self.paths):
            if all(any(matches(one, not_this) for not_this in excluded) for one in expand(path)):
                yield f"paths[{index}]", f"exclude leaves nothing of {path!r}"

    def arrival(self) -> str:
        return "each line of a file is taken once, but for what is cut off or deleted unread"


@dataclass(frozen=True)
class Exec(KeepsAnswers):
    """Runs a command on the node and takes the lines that it prints.

    Only where the node's own policy file allows the command. It runs without a shell, and ends with
    the source. Attributes: `source`, `command`.

    With `once_per: cluster` it runs at the times of a schedule, each time on one of the nodes that
    collect the flow. It finds the due time as `FLUMENG_DUE` in its environment, and the one whose
    lines were taken last as `FLUMENG_SINCE`, which is not there at first. An event's time is the
    due time.
    """

    implementation: ClassVar[str] = "flumeng.connectors.exec.source:ExecSource"
    poll: ClassVar[str] = "flumeng.connectors.polls.exec_poll:ExecPoll"

    command: tuple[str, ...] = option(
        doc="The program, as an absolute path, and its arguments.",
        minimum=1,
        example='["/usr/bin/vmstat", "-n", "10"]',
    )
    mode: Literal["streaming", "periodic", "once"] = option(
        doc="`streaming`: run it for ever, again when it ends. `periodic`: run it every so often. "
        "`once`: run it until it has ended well once.",
        default="streaming",
    )
    every_seconds: float = option(
        doc="With `periodic`, from start to start; a run that takes longer is waited for.",
        unit="seconds",
        minimum=0.1,
        maximum=604_800,
        default=60.0,
    )
    max_line_bytes: int = _max_line_bytes()
    once_per: Literal["node", "cluster"] = option(
        doc="`node`: it runs on each node of `place.ingest`, as `mode` says. `cluster`: it runs "
        "once at each time of `schedule`; `mode` does not count.",
        default="node",
    )
    schedule: Schedule | None = option(doc="With `cluster`: when to run it.", default=None)
    answers: Answers | None = option(
        doc="With `cluster`: where what it has printed lies until it is in all sinks.", default=None
    )
    timeout_seconds: float = option(
        doc="With `cluster`: a run that takes longer is ended, and its lines are not taken.",
        unit="seconds",
        minimum=0.1,
        maximum=600,
        default=60.0,
    )

    @property
    def placing(self) -> Literal["pinned", "partitioned"]:
        return "partitioned" if self._polled else "pinned"

    @property
    def keeps_place(self) -> bool:
        return self.mode == "once" and not self._polled

    @property
    def _polled(self) -> bool:
        return self.once_per == "cluster"

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.command[0].startswith("/"):
            yield "command", f"expected an absolute path first; found {self.command[0]!r}"
        polled = {"schedule": self.schedule is not None, "answers": self.answers is not None}
        for name, given in polled.items():
            if given and not self._polled:
                yield name, "needs `once_per: cluster`"
            elif self._polled and not given:
                yield name, "expected with `once_per: cluster`"
        if self._polled and (self.mode, self.every_seconds) != ("streaming", 60.0):
            yield (
                "mode",
                "does not count with `once_per: cluster`: leave out mode and every_seconds",
            )

    def needs(self) -> Iterator[Need]:
        yield "command", self.command
        if self.answers is not None:
            yield "output", self.answers.path

    def arrival(self) -> str:
        if self._polled:
            return "what a run has printed that ended well is taken once"
        return "what was printed and not accepted when the worker broke is lost"


@dataclass(frozen=True)
class Generate(SourceOptions):
    """Makes numbered events, to test and to measure. Attributes: `source`, `seed`.

    A body is the seed, the event's number in 16 digits and filling. Numbers begin with 0 and have
    no gaps, also over restarts.
    """

    implementation: ClassVar[str] = "flumeng.connectors.generate.source:GenerateSource"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    keeps_place: ClassVar[bool] = True
    events_per_second: int = option(
        doc="How many; 0 makes as many as the journal takes.",
        unit="events",
        minimum=0,
        maximum=10**9,
        default=10,
    )
    bytes: int = option(
        doc="The size of a body.", unit="bytes", minimum=32, maximum=2**20, default=200
    )
    count: int = option(
        doc="How many in all; 0 never ends.", unit="events", minimum=0, maximum=10**15, default=0
    )
    seed: int = option(
        doc="Names this source within its flow, and begins each body.",
        minimum=0,
        maximum=10**9,
        default=0,
    )

    def claims(self) -> Iterator[tuple[str, str]]:
        yield "seed", f"generate {self.seed}"

    def arrival(self) -> str:
        return "each number is made once"
