"""Keeps sinks out of the node's own data directory."""

from __future__ import annotations

import os
from pathlib import Path

from flumeng.config import Component
from flumeng.config.component import Declared
from flumeng.platform.errors import UserError
from flumeng.platform.options.locations import place_of
from flumeng.platform.options.patterns import fixed_part


def require_outside(data: Path, part: Component[Declared]) -> None:
    needs = part.options.needs()
    for kind, what in needs:
        if kind == "output" and _meets(os.path.realpath(data), place_of(what)):
            raise UserError(
                f"{part.name}: the path {place_of(what)} is in, or contains, the node's data "
                f"directory {data}: name a directory outside of it"
            )


def _meets(directory: str, target: str) -> bool:
    """Return whether ``target`` may be in ``directory`` or contain it."""
    path = target.removeprefix("file://")
    if not path.startswith("/"):
        return False
    fixed = fixed_part(path)
    parent, _, beginning = (fixed if fixed != path else f"{path}/").rpartition("/")
    real = os.path.realpath("/" + parent.lstrip("/"))
    written = f"{real.rstrip('/')}/{beginning}"
    return f"{directory}/".startswith(written) or written.startswith(f"{directory}/")
