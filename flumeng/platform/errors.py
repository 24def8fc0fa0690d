"""The error tree, split by the remedy; adapters raise only these. Exit codes of commands: 6 not
allowed or forbidden, else 2 user, 3 conflict, 4 unavailable, 1 any other error."""

from __future__ import annotations


class FlumengError(Exception):
    """Base of all errors that flumeng raises on purpose."""


class UserError(FlumengError):
    """The input is wrong: its author must change it."""


class UnknownNameError(UserError):
    """The input names something that does not exist."""


class NotAllowedError(UserError):
    """A node, or its policy file, denies this identity the call; a retry cannot succeed."""


class ConflictError(FlumengError):
    """Another writer won a compare-and-set: read again, then decide again."""


class UnavailableError(FlumengError):
    """A server does not answer now: wait and try again. The outcome of a write is unknown."""


class ForbiddenError(UnavailableError):
    """ZooKeeper denied access and nothing was written; only an administrator can change this."""


class CorruptError(FlumengError):
    """Stored data is damaged: stop, and keep the evidence."""
