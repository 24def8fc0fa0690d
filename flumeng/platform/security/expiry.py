"""Warns weeks before certificates expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flumeng.platform.errors import UserError
from flumeng.platform.security import roles
from flumeng.platform.security.credentials import Credentials, Keystore
from flumeng.platform.security.roles import ROLES

WARN_DAYS = 30.0
CHECK_SECONDS = 600.0
SITES = "sites"
"""The folder with the certificates for other sites, in the host's own."""


class Expiry:
    """Checks this host's certificates at most every CHECK_SECONDS; ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._clock, self._now = clock, now
        self._checked_at = float("-inf")
        self._problems: dict[str, str] = {}

    def problems(self) -> dict[str, str]:
        """Return warnings by ``certificate of ROLE`` or ``certificate for site SITE``; none in an
        open cluster."""
        folder = roles.folder()
        if folder is not None and self._clock() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._clock()
            self._problems = {
                f"certificate {subject}": text
                for subject, credentials in _of_host(folder)
                if (text := warning(credentials, self._now()))
            }
        return self._problems


def credentials_in(folder: Path) -> Iterator[tuple[Keystore, Credentials | UserError]]:
    """Yield the credentials of each role with a certificate, or the error why they are unusable."""
    for role in ROLES:
        keystore = Keystore(folder, role)
        if keystore.certificate.exists():
            try:
                yield keystore, keystore.load()
            except UserError as error:
                yield keystore, error


def _of_host(folder: Path) -> Iterator[tuple[str, Credentials | UserError]]:
    """Yield the host's own credentials, and those for other sites."""
    for keystore, credentials in credentials_in(folder):
        yield f"of {keystore.role}", credentials
    for site in sorted((folder / SITES).glob("*")):
        for _, credentials in credentials_in(site):
            yield f"for site {site.name}", credentials


def described(folder: Path, now: datetime) -> list[dict[str, Any]]:
    """Return ``role``, ``name``, ``cluster``, ``until`` (UTC) and ``days_left`` of each certificate
    in the folder, or ``role`` and ``problem`` of an unusable one."""
    return [
        {"role": keystore.role, "problem": str(credentials)}
        if isinstance(credentials, UserError)
        else {
            "role": keystore.role,
            "name": credentials.identity.name,
            "cluster": credentials.identity.cluster,
            "until": f"{credentials.expires:%Y-%m-%d %H:%M}",
            "days_left": round(days_left(credentials, now), 1),
        }
        for keystore, credentials in credentials_in(folder)
    ]


def days_left(credentials: Credentials, now: datetime) -> float:
    return (credentials.expires - now).total_seconds() / 86_400


def warning(credentials: Credentials | UserError, now: datetime) -> str:
    """Return a warning, of unusable credentials the error; empty until WARN_DAYS before the end."""
    if isinstance(credentials, UserError):
        return str(credentials)
    left, when = days_left(credentials, now), f"{credentials.expires:%Y-%m-%d %H:%M} UTC"
    if left > WARN_DAYS:
        return ""
    renew = "`flumeng node enroll` or `flumeng cluster secure issue` makes a new one"
    if left <= 0:
        return f"it expired at {when}, and servers refuse it; {renew}"
    return f"it expires in {left:.0f} days, at {when}; {renew}"


def utc_now() -> datetime:
    return datetime.now(UTC)
