"""What can go wrong with a journal, for those who must tell one from another."""

from __future__ import annotations

from flumeng.errors import CorruptError, UnavailableError


class JournalFailedError(CorruptError):
    """A write or a sync failed, so nobody knows what is on disk: this opening of the journal
    takes nothing more. Opening it again recovers from the synced checkpoint."""


class DiskFullError(UnavailableError):
    """There is no room for the frame. Nothing was written; the journal goes on when there is."""


class NotServedError(UnavailableError):
    """The server does not have that journal now."""


class DataLossError(CorruptError):
    """Events that should exist are not there."""


class BelowFloorError(DataLossError):
    """The range begins below the journal's floor: those events were trimmed."""


class AboveSafeError(DataLossError):
    """The range ends above what the journal has on disk."""
