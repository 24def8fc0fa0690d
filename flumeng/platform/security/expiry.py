"""For how long certificates still hold, told weeks before they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from flumeng.platform.errors import UserError
from flumeng.platform.security import roles
from flumeng.platform.security.credentials import Credentials, Keystore
from flumeng.platform.security.roles import ROLES

WARN_DAYS = 30.0
LOOK_SECONDS = 600.0


class Expiry:
    """Of the certificates of this process's host; they are looked at every ten minutes.

    ``clock`` gives seconds that only grow, ``now`` the time in UTC.
    """

    def __init__(self, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._clock, self._now = clock, now
        self._looked_at = float("-inf")
        self._found: dict[str, str] = {}

    def problems(self) -> dict[str, str]:
        """``certificate of ROLE`` -> what people should know; empty in an open cluster."""
        folder = roles.folder()
        if folder is not None and self._clock() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = self._clock()
            self._found = {
                f"certificate of {keystore.role}": text
                for keystore, found in credentials_in(folder)
                if (text := warning(found, self._now()))
            }
        return self._found


def credentials_in(folder: Path) -> Iterator[tuple[Keystore, Credentials | UserError]]:
    """What is there for each role, or why it is of no use."""
    for role in ROLES:
        keystore = Keystore(folder, role)
        if keystore.certificate.exists():
            try:
                yield keystore, keystore.load()
            except UserError as error:
                yield keystore, error


def days_left(found: Credentials, now: datetime) -> float:
    return (found.expires - now).total_seconds() / 86_400


def warning(found: Credentials | UserError, now: datetime) -> str:
    """Empty while there is time."""
    if isinstance(found, UserError):
        return str(found)
    left, when = days_left(found, now), f"{found.expires:%Y-%m-%d %H:%M} UTC"
    if left > WARN_DAYS:
        return ""
    renew = "`flumeng node enroll` or `flumeng cluster secure issue` makes a new one"
    if left <= 0:
        return f"it ended at {when}, and nobody lets it in any more; {renew}"
    return f"it ends in {left:.0f} days, at {when}; {renew}"


def utc_now() -> datetime:
    return datetime.now(UTC)
