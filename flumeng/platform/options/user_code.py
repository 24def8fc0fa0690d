"""Names of users' own Python code, in flows and in the policy of a node."""

from __future__ import annotations

import re

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE = re.compile(rf"{_NAME}(\.{_NAME})*")
_FUNCTION = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}")


def check_module(text: str) -> None:
    if not _MODULE.fullmatch(text):
        raise ValueError("expected a module, like company.sinks")


def check_function(text: str) -> None:
    if not _FUNCTION.fullmatch(text):
        raise ValueError('expected a module and a function, like "company.sinks:to_warehouse"')


def check_argument(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        raise ValueError("expected the name of an argument")
