"""The error tree, split by the remedy; adapters raise only these. Exit codes: 2, 3, 4 and 1."""

from __future__ import annotations


class FlumengError(Exception):
    """Base of all errors that flumeng raises on purpose."""


class UserError(FlumengError):
    """The input is wrong: its author must change it."""


class NotAllowedError(UserError):
    """A node, or its policy file, does not allow it to this identity; a retry is in vain."""


class ConflictError(FlumengError):
    """Another writer won a compare-and-set: read again, then decide again."""


class UnavailableError(FlumengError):
    """A server does not answer now: wait and try again. The outcome of a write is unknown."""


class ForbiddenError(UnavailableError):
    """ZooKeeper denies this identity the access. Nothing was written, and a retry is in vain until
    an administrator changes the access."""


class CorruptError(FlumengError):
    """Stored data is damaged: stop, and keep the evidence."""
