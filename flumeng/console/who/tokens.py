"""Tokens for programs: a file with the SHA-256 digest of each, read again when it changes.

A token is random, so a digest without salt cannot be reversed. While the file is unusable, no token
is valid: an entry that was removed must not come back.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flumeng.config.decode import decode
from flumeng.config.document import compose
from flumeng.console.who.viewers import Rights, Role
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.options.option import option
from flumeng.platform.options.problems import SpecError
from flumeng.platform.security.identity import NAME

log = logging.getLogger(__name__)

PREFIX = "flumeng_"
"""Scanners for leaked secrets find tokens by it."""
PATTERN = re.compile(r"[A-Za-z0-9*._-]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_token_name(text: str) -> None:
    if not NAME.fullmatch(text):
        raise ValueError("expected at most 63 letters, digits, dots, dashes and underscores")


def check_flows(text: str) -> None:
    if not PATTERN.fullmatch(text):
        raise ValueError("expected the name of a flow, with * for any text")


def check_until(text: str) -> None:
    try:
        datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        raise ValueError("expected a day, like 2027-01-31") from None


def check_digest(text: str) -> None:
    if not _DIGEST.fullmatch(text):
        raise ValueError("expected 64 hexadecimal digits, as `flumeng console token` prints them")


@dataclass(frozen=True)
class Grant:
    """The rights of a group or a token."""

    role: Role = option(doc="`viewer`, `operator` or `admin`.")
    flows: tuple[str, ...] | None = option(
        doc="The flows that an operator may change; `*` in a name stands for any text. Default: "
        "all.",
        check=check_flows,
        example="[web, app-*]",
        default=None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.flows is not None and self.role != "operator":
            yield "flows", "only an operator can be limited to flows"

    @property
    def rights(self) -> Rights:
        return Rights(self.role, self.flows)


@dataclass(frozen=True)
class Token(Grant):
    """A token, without the token."""

    sha256: str = option(doc="The digest of the token.", check=check_digest, default="")
    until: str = option(
        doc="The last day, in UTC, on which it is valid.", check=check_until, default="9999-12-31"
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if not self.sha256:
            yield "sha256", "missing: `flumeng console token` prints it"

    def is_valid(self, now: float) -> bool:
        return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}" <= self.until


@dataclass(frozen=True)
class TokenFile:
    tokens: Mapping[str, Token] = option(
        doc="Tokens by name.", check=check_token_name, factory=dict
    )


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_token(name: str, role: Role, flows: tuple[str, ...], until: str) -> tuple[str, str]:
    """Return a token, and its line below ``tokens:`` in a file. Raises UserError."""
    token = PREFIX + secrets.token_urlsafe(32)
    flows_text = f", flows: [{', '.join(map(_quoted, flows))}]" if flows else ""
    line = f'  {name}: {{role: {role}{flows_text}, until: "{until}", sha256: "{digest(token)}"}}'
    parse(f"tokens:\n{line}\n", "the token")
    return token, line


def parse(text: str, name: str) -> Mapping[str, Token]:
    """Return the tokens. Raises UserError with all problems, a line each."""
    try:
        return decode(TokenFile, compose(text)).tokens
    except SpecError as error:
        raise UserError("\n".join(f"{name}: {problem}" for problem in error.problems)) from error


class Tokens:
    """The tokens of a file. Thread-safe. ``clock``: seconds since the epoch. Raises UserError when
    the file is unusable at first."""

    def __init__(self, file: Path, clock: Callable[[], float]) -> None:
        self._file, self._clock = file, clock
        self._lock = threading.Lock()
        self._changed: tuple[int, ...] = ()
        self._problem = ""
        self._tokens: Mapping[str, Token] = {}
        self._read()
        if self._problem:
            raise UserError(self._problem)

    def of(self, token: str) -> tuple[str, Token] | None:
        """Return the name and rights of a token that is valid now. Raises UnavailableError while
        the file is unusable."""
        return self.by_digest(digest(token))

    def by_digest(self, wanted: str) -> tuple[str, Token] | None:
        """Compares with all digests in constant time."""
        found = None
        for name, token in self._current().items():
            if hmac.compare_digest(token.sha256, wanted) and token.is_valid(self._clock()):
                found = (name, token)
        return found

    def _current(self) -> Mapping[str, Token]:
        with self._lock:
            self._read()
            if self._problem:
                raise UnavailableError("tokens cannot be checked now: their file is unusable")
            return self._tokens

    def _read(self) -> None:
        try:
            status = self._file.stat()
            changed = (status.st_mtime_ns, status.st_ino, status.st_size)
            if changed == self._changed:
                return
            self._tokens = parse(self._file.read_text(), str(self._file))
            self._changed, problem = changed, ""
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            problem = f"cannot read the tokens {self._file}: {reason}"
        except UserError as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.error("%s", problem)
        if problem:
            self._changed = ()
        self._problem = problem


def _quoted(text: str) -> str:
    return f'"{text}"'
