"""The words of a command line for a field of an action: its name, and its value or None."""

from __future__ import annotations

from typing import Any


def as_option(name: str, value: Any) -> list[str]:
    """Return the words of an option; a list gives it several times."""
    option = f"--{name.replace('_', '-')}"
    if value is True or not value:
        return [option] if value else []
    values = value if isinstance(value, list) else [value]
    return [word for each in values for word in (option, str(each))]


def as_argument(_name: str, value: Any) -> list[str]:
    """Return the words of a value that stands without an option."""
    return value if isinstance(value, list) else [value] if value else []


def confirmed(name: str, value: Any) -> list[str]:
    """Return the words of an option for which the command asks back."""
    return [f"--{name}", "--yes"] if value else []
