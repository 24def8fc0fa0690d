"""What a flow may promise, given its components: a promise that cannot be kept is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flumeng import registry
from flumeng.spec.component import Component
from flumeng.spec.flow import FlowSpec


def check(spec: FlowSpec) -> Iterator[tuple[str, str]]:
    """Yield ``(path, message)`` for each promise that the flow's parts cannot keep together."""
    if spec.durability != "disk":
        yield "durability", f'"{spec.durability}" is not available yet: use disk'
    if spec.delivery == "exactly-once":
        for index, sink in enumerate(spec.sinks):
            if "transactional" not in registry.get(sink.kind, sink.name).guarantees:
                able = [e.name for e in registry.entries("sink") if "transactional" in e.guarantees]
                yield (
                    f"sinks[{index}].{sink.name}",
                    f"cannot take part in exactly-once delivery (only {', '.join(able)} can): "
                    "use at-least-once",
                )
    yield from _check_addresses(spec.sources)


def _check_addresses(sources: tuple[Component, ...]) -> Iterator[tuple[str, str]]:
    taken: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, source in enumerate(sources):
        if source.name == "syslog" and not source.options.listen.endswith(":0"):
            taken[source.options.protocol, source.options.listen].append(index)
    for (protocol, address), (first, *others) in taken.items():
        for index in others:
            yield (
                f"sources[{index}].syslog.listen",
                f"sources[{first}] already listens on {protocol} {address}",
            )
