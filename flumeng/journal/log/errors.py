"""Errors of journals."""

from __future__ import annotations

from flumeng.journal.log.disk import FULL, OUT_OF_DESCRIPTORS
from flumeng.platform.errors import CorruptError, NotAllowedError, UnavailableError


class JournalFailedError(CorruptError):
    """A write or sync failed, so the content of the disk is unknown: the journal rejects appends
    until it is reopened."""


class HeldError(UnavailableError):
    """The journal cannot append now and wrote nothing; ``cause`` is a short reason."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class DiskFullError(HeldError):
    """The disk, the journal or all journals together have reached their limit."""


class OutOfDescriptorsError(HeldError):
    """The process or the system has too many open files."""


class NotServedError(UnavailableError):
    """The server does not have that journal now."""


class KeyMissingError(UnavailableError):
    """The key of encrypted events is missing; they wait for it."""


class DeniedError(NotAllowedError):
    """The caller is not authenticated or not authorized."""


class TapDeniedError(NotAllowedError):
    """The node's policy forbids taps of that flow."""


class TapsBusyError(UnavailableError):
    """The server has reached its limit of taps; retry later."""


class DataLossError(CorruptError):
    """Events that should exist are missing."""


class BelowFloorError(DataLossError):
    """The range begins below the floor: its events were trimmed."""


class AboveSafeError(DataLossError):
    """The range ends above the durable events."""


def held(what: str, error: OSError) -> HeldError | None:
    """Returns a HeldError for temporary errors: a full disk, too many open files."""
    if error.errno in FULL:
        return DiskFullError(f"{what}: {error.strerror}", f"disk full: {error.strerror}")
    if error.errno in OUT_OF_DESCRIPTORS:
        return OutOfDescriptorsError(f"{what}: {error.strerror}", f"descriptors: {error.strerror}")
    return None
