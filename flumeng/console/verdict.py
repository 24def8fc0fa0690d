"""The verdict of a picture: the first true cause, since when, and the advice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flumeng.console.pictures import Picture, Since, oldest
from flumeng.control.queries import timestamps
from flumeng.control.queries.causes import grouped
from flumeng.control.queries.links import span

FLOWS_NAMED = 3
MINUTE = 60.0
AWAY = "ZooKeeper does not answer: journals still take events, nothing is moved or changed"
AWAY_ADVICE = (
    "check that ZooKeeper's servers run and are reachable from here; when they answer again, "
    "everything goes on by itself"
)


@dataclass(frozen=True)
class Verdict:
    """The first true cause, with its advice and since when it is there. ``waiting``: events that
    wait. ``more``: further causes with advice. ``level``: ``ok``, ``notice`` if flows
    only are paused or have dead letters, ``bad``, or ``unknown`` without a picture."""

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
    notices = [*_dying(picture), *_paused(picture)]
    if picture.away_since:
        began = Since(picture.away_since, or_longer=False)
        late = waiting(status["flows"])
        return Verdict("bad", AWAY, AWAY_ADVICE, began, late, [*causes, *notices])
    if causes:
        sentence, advice = causes[0]
        since = picture.since.get(status["causes"][0]["about"])
        more = [*causes[1:], *notices]
        return Verdict("bad", sentence, advice, since, waiting(status["flows"]), more)
    if notices:
        sentence, advice = notices[0]
        late = waiting(status["flows"])
        return Verdict("notice", sentence, advice, waiting=late, more=notices[1:])
    behind = sum(flow["lag"] for flow in status["flows"])
    if not behind:
        return Verdict("ok", "Nothing is wrong: all events are delivered.")
    age = oldest(status["flows"])
    way = f"{behind:,} events are on their way" + (f", the oldest for {span(age)}" if age else "")
    return Verdict("ok", f"Nothing is wrong: {way}.")


def of_flow(picture: Picture, flow: str) -> list[tuple[str, str]]:
    """Return the causes and notices about a flow, with advice, as the first page has them."""
    causes = [cause for cause in picture.status["causes"] if _is_about(cause["about"], flow)]
    mine = [each for each in (*_dying(picture), *_paused(picture)) if _is_about(each[0], flow)]
    return [*grouped(causes), *mine]


def _is_about(sentence: str, flow: str) -> bool:
    """Return whether a sentence is about the flow or one of its tasks."""
    name = re.escape(flow)
    return bool(re.search(rf"flow {name}(?![\w.~-])|task {name}/", sentence))


def _dying(picture: Picture) -> list[tuple[str, str]]:
    """Return a sentence and advice for each flow with dead letters in the last minute."""
    found = []
    for flow, rates in picture.rates.items():
        if rates.dead_letters:
            letters = max(1, round(rates.dead_letters * MINUTE))
            sentence = f"flow {flow} put {letters:,} events into dead letters in the last minute"
            advice = (
                f"see the reasons (`flumeng flow dead list {flow}`), correct the flow "
                f"(`flumeng flow apply`), then `flumeng flow dead replay {flow}`"
            )
            found.append((letters, sentence, advice))
    return [(sentence, advice) for _, sentence, advice in sorted(found, reverse=True)]


def _paused(picture: Picture) -> list[tuple[str, str]]:
    """Return a sentence and advice for each flow that an operator paused."""
    found = []
    for flow in picture.status["flows"]:
        if flow["state"] == "suspended":
            name, entry = flow["flow"], picture.pauses.get(flow["flow"])
            sentence = f"flow {name} is paused and delivers nothing"
            if entry:
                why = f": {entry.reason}" if entry.reason else ", without a reason"
                sentence += f", by {entry.who} since {timestamps.utc(entry.time)} UTC{why}"
            found.append((sentence, f"`flumeng flow resume {name}`"))
    return found


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
