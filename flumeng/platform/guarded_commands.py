"""How to start users' commands under a guard, which ends them with the process that starts them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("command_guard.py")))
"""The words before a command that run it under a guard."""
STOP_SECONDS = 4.0
"""A guard that runs for longer than this after the end of its input counts as hung."""
ENVIRONMENT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ")
"""The variables that commands inherit; other variables of this process may hold secrets."""


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
