"""Small files that must be whole and there after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(file: Path, text: str) -> None:
    """Whole or not at all, also after a power cut."""
    draft = file.with_suffix(".tmp")
    with draft.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    draft.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
