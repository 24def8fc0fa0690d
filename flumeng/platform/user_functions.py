"""Imports users' functions that flows name, and reports their errors."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flumeng.platform import arrow_pandas
from flumeng.platform.errors import FlumengError, UserError

UserFunction = Callable[..., Any]


class FunctionError(FlumengError):
    """A user's function raised, or returned an invalid value."""


def imported(reference: str) -> UserFunction:
    """Return the function ``module:name``, defined in that module or below. Raises UserError."""
    module, _, name = reference.partition(":")
    arrow_pandas.take_in()
    try:
        function: object = getattr(import_module(module), name, None)
    except Exception as error:
        raise UserError(f"python: importing {module} raised {last_line(error, module)}") from error
    if not callable(function):
        raise UserError(f"python: there is no function {name} in {module}")
    home = str(getattr(function, "__module__", None))
    if home != module and not home.startswith(f"{module}."):
        raise UserError(
            f"python: {name} of {module} comes from {home}: name the module that defines it, or "
            "define a function there that calls it"
        )
    return function


def last_line(error: Exception, module: str) -> str:
    """Return the error with its deepest traceback line in ``module``'s package, else in any."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    home = _home(module)
    own = [frame for frame in frames if home and Path(frame.filename).is_relative_to(home)]
    others = [frame for frame in frames if frame.filename != __file__]
    if not (lines := own or others):
        return text
    return f"{text} (line {lines[-1].lineno} of {lines[-1].filename})"


def _home(module: str) -> Path | None:
    try:
        spec = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin
