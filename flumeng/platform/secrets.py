"""Secrets, ``${secret:NAME}`` in inventories and flows; no message shows one. Each is looked up on
the host that uses it: only in the place that the node's policy file names for it. A secret without
such a place is in the variable ``FLUMENG_SECRET_<NAME>`` (capitals, underscores for dashes), else
in the file NAME of the directory ``FLUMENG_SECRETS``."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.options.locations import Credentials
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.options.quantities import check_absolute
from flumeng.platform.scrubbing import Secret

DIRECTORY = "FLUMENG_SECRETS"
PREFIX = "FLUMENG_SECRET_"
MAX_BYTES = 64 * 1024
COMMAND_SECONDS = 10.0
KEEP_SECONDS = 30.0
"""Seconds for which a command's output is reused: many tasks that begin at once run it once."""


@dataclass(frozen=True)
class SecretBackend:
    """Where a secret is found on a host."""

    file: str | None = option(
        doc="A file that only its owner may read; a line end after the secret is ignored.",
        check=check_absolute,
        example="/etc/flumeng/secrets/search",
        default=None,
    )
    env: str | None = option(
        doc="An environment variable of the node.", example="SEARCH_PASSWORD", default=None
    )
    command: tuple[str, ...] = option(
        doc="A command, with an absolute path and without a shell, that prints the secret within "
        "10 s. Its output is used for 30 s.",
        example='["/usr/bin/vault", "read", "-field=password", "secret/search"]',
        default=(),
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        given = [self.file is not None, self.env is not None, bool(self.command)]
        if sum(given) != 1:
            yield "", "expected one of file, env and command"
        if self.command and not self.command[0].startswith("/"):
            yield "command", "expected a command with an absolute path"


_backends: dict[str, SecretBackend] = {}


def use(backends: Mapping[str, SecretBackend]) -> None:
    """Set where secrets are found, from the policy file of this process's node."""
    _backends.clear()
    _backends.update(backends)


@contextmanager
def placeholders() -> Iterator[None]:
    """Within the context each secret is a placeholder and none is read, for plans without a run."""
    global _placeholder  # noqa: PLW0603  one process, one policy
    _placeholder = True
    try:
        yield
    finally:
        _placeholder = False


_placeholder = False


def resolve(reference: str) -> Secret:
    """Return the secret of ``${secret:NAME}``, without the line end of its file or command. Raises
    ``UserError``, such as when it is missing or its file is open to others, and
    ``UnavailableError`` when its command fails."""
    form = SECRET.fullmatch(reference)
    if form is None:
        raise UserError("expected a reference to a secret, like ${secret:fra-zookeeper}")
    name = form[1]
    if _placeholder:
        return Secret(f"placeholder-for-{name}")
    backend = _backends.get(name)
    return _anywhere(name) if backend is None else _from_backend(name, backend)


def of(credentials: Credentials | None) -> dict[str, Secret]:
    """Return the secrets in a store's credentials, keyed by reference. Raises as ``resolve``."""
    given = credentials.given.values() if credentials is not None else ()
    return {value: resolve(value) for value in given if SECRET.fullmatch(value)}


def filled(values: Mapping[str, str]) -> dict[str, str]:
    """Return ``values`` with secrets in place of references. Raises as ``resolve``."""
    resolved = {}
    for name, value in values.items():
        whole = SECRET.sub(lambda reference: resolve(reference[0]), value)
        resolved[name] = Secret(whole) if whole != value else value
    return resolved


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without ``FLUMENG_SECRET_*``: others could read these in ``/proc``.
    For processes without a policy file: variables that it names for a node's secrets stay."""
    return {name: text for name, text in environment.items() if not name.startswith(PREFIX)}


def _anywhere(name: str) -> Secret:
    variable = PREFIX + name.upper().replace("-", "_")
    secret = os.environ.get(variable)
    directory = os.environ.get(DIRECTORY)
    if not secret and directory:
        secret = _content(Path(directory) / name)
    if not secret:
        where = Path(directory) / name if directory else f"the file {name} in ${DIRECTORY}"
        raise UserError(f"there is no secret {name}: set {variable}, or write it to {where}")
    return Secret(secret)


def _from_backend(name: str, backend: SecretBackend) -> Secret:
    if backend.file is not None:
        secret, where = _content(Path(backend.file)), backend.file
    elif backend.env is not None:
        secret, where = os.environ.get(backend.env), f"the environment variable {backend.env}"
    else:
        where = f"the command {backend.command[0]}"
        command = _commands.setdefault(backend.command, Command(backend.command))
        secret = _text(command.output(name), f"the secret {name} of {where}")
    if not secret:
        raise UserError(f"there is no secret {name} in {where}, which the policy file names")
    return Secret(secret)


def _content(path: Path) -> str | None:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123  non-blocking
            state = os.fstat(file.fileno())
            content = file.read(MAX_BYTES + 1) if stat.S_ISREG(state.st_mode) else b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"the secret {path} cannot be read: {error.strerror}") from error
    if state.st_mode & 0o077:
        raise UserError(f"the secret {path} is open to others: chmod 600 {path}")
    return _text(content, f"the secret {path}")


def _text(content: bytes, what: str) -> str:
    if len(content) > MAX_BYTES:
        raise UserError(f"{what} is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError(f"{what} is not UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


class Command:
    def __init__(self, words: tuple[str, ...], seconds: float = COMMAND_SECONDS) -> None:
        self._words, self._seconds = words, seconds
        self._lock = threading.Lock()
        self._until = 0.0
        self._outcome: bytes | FlumengError = b""

    def output(self, name: str) -> bytes:
        """Return the output, at most MAX_BYTES + 1 bytes, kept KEEP_SECONDS. Raises UserError for a
        command that does not start, and UnavailableError."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._outcome = _run(self._words, self._seconds)
                self._until = time.monotonic() + KEEP_SECONDS
            outcome = self._outcome
        if isinstance(outcome, FlumengError):
            raise type(outcome)(
                f"cannot read secret {name}: its command {self._words[0]} {outcome}"
            )
        return outcome


_commands: dict[tuple[str, ...], Command] = {}


def _run(words: tuple[str, ...], seconds: float) -> bytes | FlumengError:
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            words, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, start_new_session=True
        )
    except OSError as error:
        return UserError(f"does not start: {error.strerror}")
    expired = threading.Event()
    late = threading.Timer(seconds, _expire, [process, expired])
    late.start()
    with process:
        assert process.stdout is not None
        printed = process.stdout.read(MAX_BYTES + 1)
        if len(printed) > MAX_BYTES:
            _kill(process)
    late.cancel()
    if expired.is_set():
        return UnavailableError(f"did not end within {seconds:.0f} s")
    if process.returncode and len(printed) <= MAX_BYTES:
        return UnavailableError(f"ended with {process.returncode}")
    return printed


def _expire(process: subprocess.Popen[bytes], expired: threading.Event) -> None:
    expired.set()
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
