"""The names in the paths of reads and actions."""

from __future__ import annotations

import re

NAMES = {
    "flow": "The name of a flow.",
    "node": "The name of a node.",
    "task": "The name of a task of the flow, such as collect.0.",
    "journal": "The name of a journal.",
    "cursor": "The name of a cursor.",
    "site": "The name of another site.",
    "key": "The key of a setting.",
    "component": "The name of a source, filter, sink, or option of a flow.",
}


def names_in(path: str) -> list[str]:
    """Return the names in braces, such as ``flow`` of ``/flows/{flow}/lag``."""
    return re.findall(r"\{(\w+)\}", path)
