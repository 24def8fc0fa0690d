"""``dataclass`` for records: they have slots, and only the type checker sees that they are frozen.

Checked at run time it would make each of very many records cost three times as much to create, and
without slots each would carry a dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(*, frozen: bool, kw_only: bool):
        return dataclasses.dataclass(unsafe_hash=frozen, kw_only=kw_only, slots=True)
