r"""Formats of access logs, as the server's configuration has them.

``$remote_addr [$time_local] "$request" $status`` is nginx's ``log_format``, ``%h [%t] \"%r\" %>s``
Apache's ``LogFormat``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from flumeng.config.column_kinds import EVENT, check_column

REQUEST = ("method", "path", "protocol")
TIMES: Mapping[str, str] = {"time_local": "common_log", "time_iso8601": "iso8601", "msec": "unix"}
"""Variables that set ``ts``, with their time format; of several in a format the first does."""
_INT, _BIGINT, _DOUBLE, _STRING = "INT", "BIGINT", "DOUBLE", "STRING"
_NGINX: Mapping[str, tuple[str, str]] = {
    "remote_addr": ("client", _STRING),
    "remote_user": ("user", _STRING),
    "status": ("status", _INT),
    "body_bytes_sent": ("bytes", _BIGINT),
    "bytes_sent": ("bytes_sent", _BIGINT),
    "request_length": ("request_length", _BIGINT),
    "request_time": ("request_time", _DOUBLE),
    "request_method": ("method", _STRING),
    "request_uri": ("path", _STRING),
    "server_protocol": ("protocol", _STRING),
    "server_port": ("server_port", _INT),
    "connection_requests": ("connection_requests", _BIGINT),
    "gzip_ratio": ("gzip_ratio", _DOUBLE),
    "http_referer": ("referer", _STRING),
    "http_user_agent": ("agent", _STRING),
    "host": ("vhost", _STRING),
}
_APACHE: Mapping[str, tuple[str, str]] = {
    "h": ("client", _STRING),
    "a": ("client_address", _STRING),
    "l": ("ident", _STRING),
    "u": ("user", _STRING),
    "s": ("status", _INT),
    "b": ("bytes", _BIGINT),
    "B": ("bytes", _BIGINT),
    "O": ("bytes_sent", _BIGINT),
    "I": ("bytes_received", _BIGINT),
    "D": ("duration_us", _BIGINT),
    "T": ("duration_s", _BIGINT),
    "v": ("server_name", _STRING),
    "V": ("vhost", _STRING),
    "p": ("server_port", _INT),
    "P": ("pid", _BIGINT),
    "k": ("keepalives", _BIGINT),
    "m": ("method", _STRING),
    "U": ("path", _STRING),
    "q": ("query", _STRING),
    "H": ("protocol", _STRING),
    "X": ("connection_status", _STRING),
    "f": ("filename", _STRING),
    "A": ("server_address", _STRING),
    "L": ("log_id", _STRING),
    "R": ("handler", _STRING),
}
_NAMED = {"i": "http_", "o": "sent_http_", "C": "cookie_", "e": "env_", "n": "note_", "x": ""}
"""Column prefixes for Apache's variables with a name, like ``%{Referer}i``."""
_HEADERS = {"http_referer": "referer", "http_user_agent": "agent"}
_UNITS = {"s": "duration_s", "ms": "duration_ms", "us": "duration_us"}
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<name>\w+))", re.ASCII)
_DIRECTIVE = re.compile(
    r"%(?:!?[0-9]+(?:,[0-9]+)*)?[<>]?(?:\{(?P<argument>[^}]+)\})?(?P<letter>[A-Za-z%])", re.ASCII
)


@dataclass(frozen=True)
class Variable:
    """A variable: ``text`` in the format is read into ``column`` with a ``type`` in Spark DDL. A
    request, with ``column`` empty, makes three; a time that sets ``ts`` has a ``time`` format."""

    text: str
    column: str
    type: str = _STRING
    time: str | None = None

    @property
    def listed(self) -> bool:
        """Whether nginx writes a list of upstream servers or proxies."""
        name = self.text.strip("${}")
        return name.startswith("upstream_") or name.endswith("_x_forwarded_for")

    @property
    def columns(self) -> dict[str, str]:
        if self.time is not None:
            return {}
        return dict.fromkeys(REQUEST, _STRING) if self.column == "" else {self.column: self.type}


Part = str | Variable


@lru_cache(maxsize=1024)
def read(log_format: str) -> tuple[Part, ...]:
    """Return the texts and variables of a format in order. Raises ValueError."""
    nginx = _VARIABLE.search(log_format) is not None
    parts: list[Part] = []
    taken: set[str] = set()
    for part in _of_nginx(log_format) if nginx else _of_apache(log_format):
        before = parts[-1] if parts else ""
        if isinstance(part, Variable):
            if isinstance(before, Variable):
                raise ValueError(
                    f"no text separates {before.text} from {part.text}: the end of {before.text} "
                    "is unclear"
                )
            parts.append(_distinct(part, taken))
        elif isinstance(before, str) and parts:
            parts[-1] = before + part
        elif part:
            parts.append(part)
    if not taken:
        raise ValueError("expected variables, like $remote_addr of nginx or %h of Apache")
    return tuple(parts)


def columns(log_format: str) -> dict[str, str]:
    """Return the columns of a format with their types in Spark DDL. Raises ValueError."""
    variables = (part for part in read(log_format) if isinstance(part, Variable))
    return {name: kind for part in variables for name, kind in part.columns.items()}


def _distinct(part: Variable, taken: set[str]) -> Variable:
    """Return a variable with columns that are not ``taken``, and add them there; only the first
    time sets ``ts``. Raises ValueError for a repeated column, or one of every event."""
    own = re.sub(r"\W", "", part.text.lstrip("$%"), flags=re.ASCII).lower()
    if part.time is not None:
        if "ts" not in taken:
            taken.add("ts")
            return part
        part = Variable(part.text, own)
    elif taken.intersection(part.columns):
        part = Variable(part.text, own, part.type)
    for name in part.columns:
        check_column(name)
        if name in taken or name in EVENT:
            raise ValueError(f"{part.text} would make a second column {name}")
    taken.update(part.columns)
    return part


def _of_nginx(log_format: str) -> Iterator[Part]:
    at = 0
    for match in _VARIABLE.finditer(log_format):
        yield log_format[at : match.start()]
        at = match.end()
        name = match["braced"] or match["name"]
        if name == "request":
            yield Variable(match[0], "")
        elif name in TIMES:
            yield Variable(match[0], "ts", time=TIMES[name])
        else:
            yield Variable(match[0], *_NGINX.get(name, (name, _STRING)))
    yield log_format[at:]


def _of_apache(log_format: str) -> Iterator[Part]:
    text = log_format.replace('\\"', '"').replace("\\t", "\t")
    at = 0
    for match in _DIRECTIVE.finditer(text):
        yield text[at : match.start()]
        at = match.end()
        if match["letter"] == "%":
            yield "%"
        elif match["letter"] == "t" and not match["argument"]:
            yield "["
            yield Variable(match[0], "ts", time="common_log")
            yield "]"
        else:
            yield _directive(match[0], match["letter"], match["argument"])
    yield text[at:]


def _directive(text: str, letter: str, argument: str | None) -> Variable:
    if letter == "r":
        return Variable(text, "")
    if letter in _NAMED and argument:
        name = _NAMED[letter] + re.sub(r"\W", "_", argument, flags=re.ASCII).lower()
        return Variable(text, _HEADERS.get(name, name))
    if letter == "T" and argument in _UNITS:
        return Variable(text, _UNITS[argument], _BIGINT)
    if letter not in _APACHE:
        more = ": write the time as %t" if letter == "t" else ""
        raise ValueError(f"{text} is not supported{more}")
    return Variable(text, *_APACHE[letter])
