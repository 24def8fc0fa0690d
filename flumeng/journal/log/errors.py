"""What can go wrong with a journal, for those who must tell one from another."""

from __future__ import annotations

from flumeng.journal.log.disk import FULL, OUT_OF_DESCRIPTORS
from flumeng.platform.errors import CorruptError, NotAllowedError, UnavailableError


class JournalFailedError(CorruptError):
    """A write or a sync failed, so nobody knows what is on disk: this opening of the journal
    takes nothing more. Opening it again recovers from the synced checkpoint."""


class HeldError(UnavailableError):
    """The journal cannot take the frame now. Nothing was written; it goes on when that changes.

    ``cause`` says in a few words, for people, what is to change.
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class DiskFullError(HeldError):
    """There is no room: on the disk, in the journal's bounds, or in what all journals may have."""


class OutOfDescriptorsError(HeldError):
    """This process, or the system, has as many files open as it may."""


class NotServedError(UnavailableError):
    """The server does not have that journal now."""


class KeyMissingError(UnavailableError):
    """Events are encrypted with a key that this process does not have. Nothing is wrong with them:
    they wait for it."""


class DeniedError(NotAllowedError):
    """Whoever asks may not have that, or does not prove who they are."""


class TapDeniedError(NotAllowedError):
    """The node's policy does not allow to look at events of that flow."""


class TapsBusyError(UnavailableError):
    """Taps read already what all of them may read there. Nothing is wrong: ask again."""


class DataLossError(CorruptError):
    """Events that should exist are not there."""


class BelowFloorError(DataLossError):
    """The range begins below the journal's floor: those events were trimmed."""


class AboveSafeError(DataLossError):
    """The range ends above what the journal has on disk."""


def held(what: str, error: OSError) -> HeldError | None:
    """The error for what a system call said, when that is to be waited for."""
    if error.errno in FULL:
        return DiskFullError(f"{what}: {error.strerror}", f"disk full: {error.strerror}")
    if error.errno in OUT_OF_DESCRIPTORS:
        return OutOfDescriptorsError(f"{what}: {error.strerror}", f"descriptors: {error.strerror}")
    return None
