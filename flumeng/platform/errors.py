"""The error tree, split by who must act. Every error that leaves an adapter is one of these; the
command line maps them to exit codes 2, 3, 4 and 1."""

from __future__ import annotations


class FlumengError(Exception):
    """Base of all errors that flumeng raises on purpose."""


class UserError(FlumengError):
    """The input is wrong: its author must change it."""


class NotAllowedError(UserError):
    """A node, or its policy file, does not allow it to this identity; a retry is in vain."""


class ConflictError(FlumengError):
    """Someone else won a compare-and-set: read again, then decide again."""


class UnavailableError(FlumengError):
    """A server does not answer now: wait and try again. The outcome of a write is unknown."""


class ForbiddenError(UnavailableError):
    """ZooKeeper does not allow it to this identity. Nothing was written, and a retry is in vain
    until an administrator changes the access."""


class CorruptError(FlumengError):
    """Stored data is not what was written: stop, and keep the evidence."""
