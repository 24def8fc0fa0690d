"""``dataclass`` for records with slots. Only the type checker treats them as frozen, so that
creating them is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(*, frozen: bool, kw_only: bool):
        return dataclasses.dataclass(unsafe_hash=frozen, kw_only=kw_only, slots=True)
