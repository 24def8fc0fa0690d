"""Shortages of memory, which Zstandard and LZ4 report like damage."""

from __future__ import annotations

_TEXTS = ("not enough memory", "ERROR_allocation_failed")


def is_shortage(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _TEXTS)


def require_memory(error: Exception) -> None:
    """Raise MemoryError if a decompressor raised ``error`` for lack of memory."""
    if is_shortage(error):
        raise MemoryError(str(error)) from error
