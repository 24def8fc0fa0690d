"""How a user's command is started: under a guard, which ends it with the process that started
it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))
"""Goes before the words of the command."""
STOP_SECONDS = 4.0
"""A guard that runs so long after the end of its input hangs."""
ENVIRONMENT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ")
"""Other variables of our process may hold secrets."""


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
