"""Replay and purge of dead letters, where the console can read their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flumeng.console.actions.action import (
    Action,
    Answer,
    Field,
    Foreseen,
    Given,
    Line,
    Name,
    Number,
)
from flumeng.console.actions.flows import FLOW_PAGE
from flumeng.console.console import Console, lent
from flumeng.control.commands.operator import Operator

CHOICE = (
    Field("dead_reason", "Only with this in the reason.", Line),
    Field("place", "Only of this filter or sink, such as sinks[0].elasticsearch.", Line),
    Field("revision", "Only of this revision.", Number),
    Field("since", "Only from that time on, such as 2026-11-22T08:00:00Z.", Line),
    Field("until", "Only before that time.", Line),
)


def _replay(console: Console, operator: Operator, given: Given) -> Answer:
    connectors = lent(console.connectors, "flow dead replay")
    document, write = connectors.replay(operator, given["flow"], given)
    places = document["places"].items()
    return Answer(
        document,
        Foreseen(
            [
                f"flow {document['flow']} replays {document['letters']} dead letters of "
                f"{document['files']} files through the current revision",
                *(f"{number} of {place}" for place, number in sorted(places)),
                *_left_out(document),
            ],
            document,
        ),
        first=write,
    )


def _left_out(document: Mapping[str, Any]) -> list[str]:
    lines = [f"left out: {why}" for why in document["damaged"].values()]
    if document.get("replayed"):
        lines.append(f"left out: {document['replayed']} that were replayed before")
    if document.get("bodiless"):
        lines.append(f"left out: {document['bodiless']} without a body to replay")
    return lines


def _purge(console: Console, operator: Operator, given: Given) -> Answer:
    connectors = lent(console.connectors, "flow dead purge")
    flow = given["flow"]
    document, delete = connectors.purge(operator, flow, given)
    letters = document["letters"]
    return Answer(
        document,
        Foreseen(
            [
                f"{letters} dead letters are deleted for good",
                f"{document['files']} files go, {document['rewritten']} are rewritten",
                *_left_out({"damaged": document["damaged"]}),
            ],
            document,
        ),
        then=delete if letters else None,
        noted=f"flow dead purge {flow}: done, {letters} dead letters",
    )


ACTIONS: tuple[Action, ...] = (
    Action(
        "dead-replay", "/flows/{flow}/dead/replay", "Replay dead letters",
        "Send dead letters through the current revision of their flow, by a flow of its own.",
        "flow dead replay {flow}", None, _replay, FLOW_PAGE,
        (
            *CHOICE,
            Field("as", "The name of the new flow; without one FLOW-replay-N.", Name),
            Field("again", "Also dead letters that were replayed before.", bool),
        ),
    ),
    Action(
        "dead-purge", "/flows/{flow}/dead/purge", "Purge dead letters",
        "Delete dead letters for good. Nothing is deleted while a replay reads them.",
        "flow dead purge {flow}", None, _purge, FLOW_PAGE,
        (*CHOICE, Field("replayed", "Only those that a replay has delivered.", bool)),
    ),
)  # fmt: skip
