"""How a command of a user is started: under a guard, which ends it with whoever started it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))
"""Goes before the words of the command."""
STOP_SECONDS = 4.0
"""So long after its input has ended a guard has ended, or hangs."""
ENVIRONMENT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ")
"""The rest of a process of ours is its own; there may be secrets in it."""


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
