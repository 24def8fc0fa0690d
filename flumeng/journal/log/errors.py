"""Errors of journals."""

from __future__ import annotations

from flumeng.journal.log.disk import FULL, OUT_OF_DESCRIPTORS
from flumeng.platform.errors import CorruptError, NotAllowedError, UnavailableError


class JournalFailedError(CorruptError):
    """After a failed write or sync the content of the disk is unknown: this journal takes nothing
    more. Reopening recovers from the synced checkpoint."""


class HeldError(UnavailableError):
    """The journal cannot take the frame now; nothing was written. ``cause`` says in a few words
    what has to change."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class DiskFullError(HeldError):
    """No room on the disk, in the journal's limit, or in that of all journals."""


class OutOfDescriptorsError(HeldError):
    """The process or the system has too many open files."""


class NotServedError(UnavailableError):
    """The server does not have that journal now."""


class KeyMissingError(UnavailableError):
    """The key of encrypted events is not here; they wait for it."""


class DeniedError(NotAllowedError):
    """The caller is not authorized, or not authenticated."""


class TapDeniedError(NotAllowedError):
    """The node's policy does not allow to tap that flow."""


class TapsBusyError(UnavailableError):
    """The taps of the server have reached their limit: try again."""


class DataLossError(CorruptError):
    """Events that should exist are missing."""


class BelowFloorError(DataLossError):
    """The range begins below the floor: its events were trimmed."""


class AboveSafeError(DataLossError):
    """The range ends above what is on disk."""


def held(what: str, error: OSError) -> HeldError | None:
    """A HeldError for errors that pass: a full disk, too many open files."""
    if error.errno in FULL:
        return DiskFullError(f"{what}: {error.strerror}", f"disk full: {error.strerror}")
    if error.errno in OUT_OF_DESCRIPTORS:
        return OutOfDescriptorsError(f"{what}: {error.strerror}", f"descriptors: {error.strerror}")
    return None
