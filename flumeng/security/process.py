"""Who this process is to the others: told once, at its start, and read again when files change."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from flumeng.security import credentials
from flumeng.security.credentials import PEOPLE, Credentials, Place
from flumeng.security.identity import Role

_roles: tuple[Role, ...] = PEOPLE


def serve_as(*roles: Role) -> None:
    """This process has the first of these roles whose certificate it has. A process that says
    nothing is a person's."""
    global _roles  # noqa: PLW0603  # one process is one
    _roles = roles


def place() -> Place | None:
    """None in an open cluster. Raises UserError."""
    return credentials.place_of(*_roles)


@dataclass(frozen=True)
class _Kept:
    changed: tuple[int, ...]
    credentials: Credentials


class Loaded:
    """The credentials of places, loaded again when their files have changed. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Place, _Kept] = {}

    def of(self, place: Place) -> Credentials:
        """Raises UserError."""
        changed = place.changed
        with self._lock:
            kept = self._kept.get(place)
        if kept is None or kept.changed != changed:
            kept = _Kept(changed, place.load())
            with self._lock:
                self._kept[place] = kept
        return kept.credentials


loaded = Loaded()
