"""Sentences on the fate of a flow's events when its state changes."""

from __future__ import annotations

from collections.abc import Sequence

from flumeng.control.commands.isolated_parts import parts_there
from flumeng.control.queries.overview import Receiving, receiving
from flumeng.control.zookeeper import ReadableStore

RESUMED = "it starts to run now (follow with `flumeng flow wait`)"


def changes(store: ReadableStore, flows: Sequence[str], state: str) -> dict[str, str]:
    """Return a sentence by flow on its change to ``running``, ``suspended`` or ``stopped``."""
    describe = {"running": lambda _kept: RESUMED, "suspended": _paused, "stopped": _stopped}[state]
    return {
        flow: f"flow {flow}: {describe(kept)}{_with(store, flow)}"
        for flow, kept in receiving(store, flows).items()
    }


def _paused(kept: Receiving) -> str:
    if not kept.origin:
        return "collecting stops now, its sources still write to the journals"
    if not kept.journals:
        return f"collecting stops now, new events wait in {kept.origin}"
    return f"collecting stops now, new events wait in the journals or in {kept.origin}"


def _stopped(kept: Receiving) -> str:
    if not kept.origin:
        return "its sources stop now, its journals are fully collected"
    if not kept.journals:
        return f"collecting stops now, remaining events wait in {kept.origin}"
    return (
        f"its sources stop now, its journals are fully collected, and remaining events wait in "
        f"{kept.origin}"
    )


def _with(store: ReadableStore, flow: str) -> str:
    parts = ", ".join(parts_there(store, [flow]))
    return f"; with its isolated parts: {parts}" if parts else ""
