"""Starts users' commands under a guard, which ends them with the process that started them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("command_guard.py")))
"""Prefix of a command."""
STOP_SECONDS = 4.0
"""A guard that runs for longer after the end of its input hangs."""
ENVIRONMENT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ")
"""Other variables of our process may hold secrets."""


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
