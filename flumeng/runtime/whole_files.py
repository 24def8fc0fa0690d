"""Small files that must be whole and there after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(file: Path, text: str) -> None:
    """Whole or not at all, also after a power cut; only for the user of this process to read."""
    draft = file.with_suffix(".tmp")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    draft.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
