"""Chooses the ways to prove a name from the options of ``flumeng console``; refuses unsafe ones.

Loopback without a way: everybody on the host may look. With a way: each viewer proves a name.
Beyond loopback: only with TLS and a way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from flumeng.console.who.members import Members
from flumeng.console.who.oidc import Oidc, read_options
from flumeng.console.who.proofs import Bounds, Who
from flumeng.console.who.sessions import Sessions, read_key
from flumeng.console.who.tls import ConsoleTls, hosts_of
from flumeng.console.who.tokens import Tokens
from flumeng.console.who.viewers import Rights
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError
from flumeng.platform.security.credentials import Credentials, Keystore
from flumeng.platform.security.exposure import is_loopback
from flumeng.platform.security.process import loaded
from zkschema import paths
from zkschema.access import SECURED

T = TypeVar("T")
LOOPBACK_NAMES = ("localhost", "localhost.localdomain")


@dataclass(frozen=True)
class Options:
    """The options of the command. ``tls``: TLS on a loopback address too."""

    listen: str
    allow_changes: bool = False
    tls: bool = False
    oidc: Path | None = None
    tokens: Path | None = None
    key: Path | None = None
    url: str = ""

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")


def prepare(
    store: Store,
    options: Options,
    keystore: Keystore | None,
    resolve: Callable[[str], str],
    *,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[Who, ConsoleTls | None]:
    """Return the gate, and TLS if it is used. ``keystore``: the console's own identity. ``resolve``
    returns a secret. Raises UserError with all problems, a line each; UnavailableError."""
    problems: list[str] = []

    def read(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except UserError as error:
            problems.extend(str(error).splitlines())
            return None

    is_local = is_loopback(options.host)
    wants_tls = options.tls or (keystore is not None and not is_local)
    own: Credentials | None = None
    tls: ConsoleTls | None = None
    if keystore is not None:
        known = keystore
        own = read(lambda: loaded.of(known))
        tls = read(lambda: ConsoleTls(known)) if wants_tls and own is not None else None
    elif options.tls:
        problems.append("--tls needs an identity: set FLUMENG_IDENTITY to its directory")
    key = read(lambda: read_key(options.key))
    tokens_file, oidc_file = options.tokens, options.oidc
    tokens = read(lambda: Tokens(tokens_file, clock)) if tokens_file else None
    given = read(lambda: read_options(oidc_file)) if oidc_file else None
    secret = read(lambda: resolve(given.client_secret)) if given is not None else None
    has_way = wants_tls or options.oidc is not None or options.tokens is not None
    problems += _problems(store, options, is_local=is_local, has_way=has_way, own=own)
    if not is_local and keystore is None:
        problems.append(
            f"--listen {options.listen}: other hosts could read and change all without a proof. "
            "Give the console an identity for TLS (`flumeng cluster secure issue viewer console "
            "--host HOST` makes one, FLUMENG_IDENTITY names it), or listen on 127.0.0.1 behind a "
            "proxy with TLS"
        )
    if problems or key is None:
        raise UserError("\n".join(problems))
    sessions = Sessions(key, clock)
    identity = own.identity if own is not None else None
    oidc = None
    if given is not None and secret is not None:
        oidc = Oidc(given, secret, options.url, sessions.seal, clock=clock, monotonic=monotonic)
    who = Who(
        Members(store, identity, clock, monotonic),
        sessions,
        Bounds.usual(monotonic),
        anonymous=None if has_way else Rights("operator" if options.allow_changes else "viewer"),
        certificates=wants_tls,
        tokens=tokens,
        oidc=oidc,
        url=options.url,
        hosts=_hosts(options, is_local=is_local, own=own if wants_tls else None),
    )
    return who, tls


def _problems(
    store: Store, options: Options, *, is_local: bool, has_way: bool, own: Credentials | None
) -> list[str]:
    problems = []
    if options.oidc is not None and not options.url:
        problems.append("--oidc needs --url, the console's address in browsers")
    if options.allow_changes and has_way:
        problems.append("--allow-changes is for a console without proofs: here the roles decide")
    elif options.allow_changes and is_local and (own is not None or _is_secured(store)):
        problems.append(
            "--allow-changes: in a secured cluster a change needs a proven name: add --tls, "
            "--oidc FILE or --tokens FILE"
        )
    if options.url:
        parts = urlsplit(options.url)
        plain = parts.scheme == "http" and is_loopback(parts.hostname or "")
        if not (parts.scheme == "https" or plain) or not parts.hostname or parts.path.strip("/"):
            problems.append(
                f"--url {options.url}: expected https://HOST[:PORT], or http:// on a loopback "
                "address, without a path"
            )
    return problems


def _is_secured(store: Store) -> bool:
    schema = store.read(paths.schema())
    return schema is not None and SECURED in schema.value.features


def _hosts(options: Options, *, is_local: bool, own: Credentials | None) -> frozenset[str]:
    """Return the DNS names by which browsers may ask."""
    names = {options.host.lower(), *(LOOPBACK_NAMES if is_local else ())}
    if options.url:
        names.add((urlsplit(options.url).hostname or "").lower())
    if own is not None:
        names |= hosts_of(own)
    return frozenset(names - {""})
