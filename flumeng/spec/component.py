"""A source, filter or sink of a flow: its name and the options class that the registry gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flumeng.spec.registry import Kind


@dataclass(frozen=True)
class Component:
    """``options`` is an instance of the frozen dataclass registered for ``kind`` and ``name``."""

    kind: Kind
    name: str
    options: Any
