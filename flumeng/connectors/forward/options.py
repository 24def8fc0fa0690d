"""The options of the sinks ``syslog`` and ``tcp``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flumeng.config.client_tls import ClientTls
from flumeng.config.component import SinkOptions
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.quantities import check_address

_TLS_DOC = "Use TLS; `{}` suffices where the host trusts the server."


def _targets(example: str) -> Any:
    return option(
        doc="The servers, as host:port. When one does not answer or fails, the next is used.",
        check=check_address,
        minimum=1,
        example=example,
    )


def _wait_for_close() -> Any:
    return option(
        doc="A split of a batch counts as written when the server has read it to its end and "
        "closes the connection. `false`: when the server's host has it.",
        default=True,
    )


def _timeout_seconds() -> Any:
    return option(
        doc="Time limit for the connection, for each MiB, and for the close.",
        between=(0.1, 50),
        default=30,
    )


def _needs(scheme: str, targets: tuple[str, ...], tls: ClientTls | None) -> Iterator[Need]:
    for target in targets:
        yield "output", f"{scheme}://{target}"
    if tls is not None:
        yield from tls.needs()


@dataclass(frozen=True)
class ForwardSyslog(SinkOptions):
    """Sends events as syslog messages over TCP or TLS to a server: rsyslog, or another flumeng.

    TCP does not acknowledge: `docs/explanation/guarantees.md` has the consequences for messages.
    """

    implementation: ClassVar[str] = "flumeng.connectors.forward.sink:ForwardSink"

    targets: tuple[str, ...] = _targets('["logs-1.example:6514", "logs-2.example:6514"]')
    message: Literal["body", "rfc5424"] = option(
        doc="`body`: the body as received; `rfc5424`: a message of RFC 5424 from those of the "
        "columns `facility`, `severity`, `ts`, `host`, `app`, `procid`, `msgid`, `structured` "
        "and `message` that exist. `body` replaces a missing `message`.",
        default="body",
    )
    framing: Literal["octet-counted", "newline"] = option(
        doc="How messages are delimited (RFC 6587). With `newline`, a line feed in a message is "
        "sent as `#012`.",
        default="octet-counted",
    )
    tls: ClientTls | None = option(doc=_TLS_DOC, default=None)
    wait_for_close: bool = _wait_for_close()
    timeout_seconds: float = _timeout_seconds()

    def needs(self) -> Iterator[Need]:
        return _needs("tcp" if self.tls is None else "tls", self.targets, self.tls)


@dataclass(frozen=True)
class ForwardTcp(SinkOptions):
    """Sends events over TCP or TLS to a server, as lines or with their lengths.

    TCP does not acknowledge: `docs/explanation/guarantees.md` has the consequences for messages.
    """

    implementation: ClassVar[str] = "flumeng.connectors.forward.sink:ForwardSink"

    targets: tuple[str, ...] = _targets('["logs-1.example:5170", "logs-2.example:5170"]')
    message: Literal["body", "json"] = option(
        doc="`body`: the body as received; `json`: the whole event as JSON.", default="body"
    )
    framing: Literal["newline", "length-prefixed"] = option(
        doc="`newline`: one line per event, a line feed in it is sent as `#012`; "
        "`length-prefixed`: each event follows its length in four bytes, big-endian.",
        default="newline",
    )
    tls: ClientTls | None = option(doc=_TLS_DOC, default=None)
    wait_for_close: bool = _wait_for_close()
    timeout_seconds: float = _timeout_seconds()

    def needs(self) -> Iterator[Need]:
        return _needs("tcp" if self.tls is None else "tls", self.targets, self.tls)
