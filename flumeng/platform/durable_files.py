"""Small files that must be whole and durable."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flumeng.platform.errors import CorruptError


def write_durably(file: Path, text: str) -> None:
    """Write a file atomically and durably, also for a power cut; only its owner may read it."""
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


def read_object(
    file: Path, remedy: str = "move the file away to go on without it"
) -> dict[str, object]:
    """Return the JSON object in a file, {} when it is missing. Raises OSError, CorruptError."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{file} is damaged: {error}; {remedy}") from error
    if not isinstance(content, dict):
        raise CorruptError(f"{file} is damaged: it holds no JSON object; {remedy}")
    return content
