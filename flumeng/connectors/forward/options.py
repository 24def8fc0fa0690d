"""The options of the sinks ``syslog`` and ``tcp``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flumeng.config.client_tls import ClientTls
from flumeng.config.component import SinkOptions
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.quantities import check_address

_TLS_DOC = "Talks TLS; `{}` is enough where the host trusts the server."


def _targets(example: str) -> Any:
    return option(
        doc="Where to, as host:port; the next one is taken when one does not answer or fails.",
        check=check_address,
        minimum=1,
        example=example,
    )


def _wait_for_close() -> Any:
    return option(
        doc="A part of a batch counts as written when the server, having read to its end, closes "
        "the connection. `false`: when the server's host has it.",
        default=True,
    )


def _timeout_seconds() -> Any:
    return option(
        doc="How long the server may take to connect, for each MiB, and to close.",
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

    TCP does not acknowledge: the consequences for single messages are in `docs/sinks.md`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.forward.sink:ForwardSink"

    targets: tuple[str, ...] = _targets('["logs-1.example:6514", "logs-2.example:6514"]')
    message: Literal["body", "rfc5424"] = option(
        doc="What is sent: the body as it was received, or a message of RFC 5424 made of the "
        "columns `facility`, `severity`, `ts`, `host`, `app`, `procid`, `msgid`, `structured` and "
        "`message` (without that `body`), as far as they are there.",
        default="body",
    )
    framing: Literal["octet-counted", "newline"] = option(
        doc="How messages are told apart (RFC 6587). With `newline` a line feed in a message is "
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

    TCP does not acknowledge: the consequences for single messages are in `docs/sinks.md`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.forward.sink:ForwardSink"

    targets: tuple[str, ...] = _targets('["logs-1.example:5170", "logs-2.example:5170"]')
    message: Literal["body", "json"] = option(
        doc="What is sent: the body as it is, or the whole event as JSON.", default="body"
    )
    framing: Literal["newline", "length-prefixed"] = option(
        doc="`newline`: a line an event, a line feed in it is sent as `#012`; `length-prefixed`: "
        "four bytes before each event are its length, the highest first.",
        default="newline",
    )
    tls: ClientTls | None = option(doc=_TLS_DOC, default=None)
    wait_for_close: bool = _wait_for_close()
    timeout_seconds: float = _timeout_seconds()

    def needs(self) -> Iterator[Need]:
        return _needs("tcp" if self.tls is None else "tls", self.targets, self.tls)
