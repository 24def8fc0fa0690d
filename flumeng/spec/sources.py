"""The options of every source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flumeng.spec.option import option
from flumeng.spec.quantities import check_absolute, check_address

_MAX_LINE_DOC = "A longer line is cut there, marked with the attribute `truncated` and counted."


@dataclass(frozen=True)
class Syslog:
    """Receives syslog messages (RFC 5424 and RFC 3164) over TCP or UDP.

    An event's body is the message as received, without its framing. Attributes: `source`, `peer`.
    """

    listen: str = option(
        doc="The address to listen on. Port 0 takes a free one.",
        check=check_address,
        example='"0.0.0.0:5514"',
    )
    protocol: Literal["tcp", "udp"] = option(doc="The transport.", default="tcp")
    framing: Literal["auto", "newline", "octet-counted"] = option(
        doc="How TCP messages are told apart (RFC 6587); `auto` looks at the first byte sent.",
        default="auto",
    )
    max_line_bytes: int = option(
        doc=_MAX_LINE_DOC, unit="bytes", minimum=64, maximum=2**24, default=2**20
    )

    def claims(self) -> Iterator[tuple[str, str]]:
        if not self.listen.endswith(":0"):
            yield "listen", f"{self.protocol} {self.listen}"


@dataclass(frozen=True)
class Tail:
    """Follows files that grow, through rotation by rename and by copy and truncate.

    It goes on where it was after any restart: each line is taken exactly once. Attributes:
    `source`, `path`, `inode`, `offset`.
    """

    paths: tuple[str, ...] = option(
        doc="The files, as absolute globs. Files that appear later are found too.",
        minimum=1,
        check=check_absolute,
        example='["/var/log/app/*.log"]',
    )
    start_from: Literal["beginning", "end"] = option(
        doc="Where to start in a file that was there before the flow.", default="beginning"
    )
    max_line_bytes: int = option(
        doc=_MAX_LINE_DOC, unit="bytes", minimum=64, maximum=2**24, default=2**20
    )
    poll_seconds: float = option(
        doc="How often to look for new lines and files.",
        unit="seconds",
        minimum=0.01,
        maximum=3600,
        default=0.1,
    )

    def claims(self) -> Iterator[tuple[str, str]]:
        for index, path in enumerate(self.paths):
            yield f"paths[{index}]", path
