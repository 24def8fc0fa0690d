"""What a flow may promise, given its parts: a promise that they cannot keep is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flumeng import registry
from flumeng.spec.component import Component


def check(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``(path, message)`` for what the parts cannot promise together.

    ``parts`` maps paths to what stands there. Parts that are wrong by themselves are absent, so
    that an author hears of these problems together with all others.
    """
    components = [(path, part) for path, part in parts.items() if isinstance(part, Component)]
    if parts.get("delivery") == "exactly-once":
        able = [e.name for e in registry.entries("sink") if "transactional" in e.guarantees]
        for path, component in components:
            if component.kind == "sink" and component.name not in able:
                yield (
                    path,
                    f"{component.name} cannot take part in exactly-once delivery "
                    f"(only {', '.join(able)} can): use at-least-once",
                )
    taken: dict[str, str] = {}
    for path, component in components:
        claims = component.options.claims() if hasattr(component.options, "claims") else ()
        for name, what in claims:
            owner = taken.setdefault(what, path)
            if owner != path:
                yield f"{path}.{name}", f"{owner} has {what} already"
