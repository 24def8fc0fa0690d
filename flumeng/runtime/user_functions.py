"""Functions of users that flows name: how one is found, and what is said when it raises."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from flumeng.errors import FlumengError, UserError

UserFunction = Callable[..., Any]


class FunctionError(FlumengError):
    """The function has raised something, or returned what it may not."""


def imported(place: str) -> UserFunction:
    """The function ``module:name``, which that module or one below it defines. Raises UserError."""
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:
        said = last_line(error, __file__)
        raise UserError(f"python: importing {module} raised {said}") from error
    if not callable(found):
        raise UserError(f"python: there is no function {name} in {module}")
    home = str(getattr(found, "__module__", None))
    if home != module and not home.startswith(f"{module}."):
        raise UserError(
            f"python: {name} of {module} comes from {home}: name the module that defines it, or "
            "define a function there that calls it"
        )
    function: UserFunction = found
    return function


def last_line(error: Exception, but_of: str) -> str:
    """What a traceback ends with, and where that was outside of the file ``but_of``."""
    said = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    where = next((frame for frame in reversed(frames) if frame.filename != but_of), None)
    return said if where is None else f"{said} (line {where.lineno} of {where.filename})"
