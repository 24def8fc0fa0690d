"""The verdict of a picture: the first true cause, since when, and the advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flumeng.console.pictures import Picture, Since
from flumeng.control.queries.causes import grouped

FLOWS_NAMED = 3


@dataclass(frozen=True)
class Verdict:
    """The first true cause, with its advice and since when it is there. ``waiting``: events that
    wait. ``more``: further causes with advice. ``level``: ``ok``, ``bad``, or ``unknown`` without a
    picture."""

    level: str
    sentence: str
    advice: str = ""
    since: Since | None = None
    waiting: str = ""
    more: Sequence[tuple[str, str]] = ()


def verdict(picture: Picture) -> Verdict:
    status = picture.status
    if picture.problem:
        return Verdict("unknown", picture.problem, "this page shows the state seen before")
    causes = grouped(status["causes"])
    if not causes:
        behind = sum(flow["lag"] for flow in status["flows"])
        way = f"{behind:,} events are on their way" if behind else "all events are delivered"
        return Verdict("ok", f"Nothing is wrong: {way}.")
    sentence, advice = causes[0]
    since = picture.since.get(status["causes"][0]["about"])
    return Verdict("bad", sentence, advice, since, waiting(status["flows"]), causes[1:])


def waiting(flows: Sequence[Mapping[str, Any]]) -> str:
    """Return the events of flows that are unwell or late; empty when there are none."""
    late = [flow for flow in flows if flow["lag"] and is_late(flow)]
    if not late:
        return ""
    late.sort(key=lambda flow: -flow["lag"])
    named = ", ".join(f"{flow['lag']:,} of {flow['flow']}" for flow in late[:FLOWS_NAMED])
    rest = len(late) - FLOWS_NAMED
    return f"Events that wait: {named}" + (
        f", and those of {rest} more flows." if rest > 0 else "."
    )


def is_late(flow: Mapping[str, Any]) -> bool:
    """Return whether a flow is unwell, or its oldest event is older than its limit."""
    age = flow["lag_seconds"]
    return bool(flow["health"]["cause"]) or (age is not None and age > flow["lag_limit_seconds"])
