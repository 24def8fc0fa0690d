"""The names in the path of a read or an action."""

from __future__ import annotations

import re


def names_in(path: str) -> list[str]:
    """Return the names in braces, such as ``flow`` of ``/flows/{flow}/lag``."""
    return re.findall(r"\{(\w+)\}", path)
