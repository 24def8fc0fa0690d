"""All flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pages.listing import Keys, damaged_in, listing, most_first
from flumeng.console.pictures import Picture
from flumeng.control.queries.overview import FlowRow
from zkschema import paths


@dataclass(frozen=True)
class Row:
    """A flow. ``status``: as `flumeng status --json` has it. ``flow``: None if it was planned
    after the status was taken. ``parts``: the names of its parts."""

    name: str
    status: Mapping[str, Any]
    flow: FlowRow | None
    parts: Sequence[str]

    @property
    def problem(self) -> str:
        return self.flow.problem if self.flow else ""

    @property
    def is_unwell(self) -> bool:
        return bool(self.problem or self.status["health"]["cause"])

    @property
    def labels(self) -> list[str]:
        given = self.flow.labels if self.flow else {}
        return [f"{key}={value}" for key, value in given.items()]

    @property
    def words(self) -> list[str]:
        health = self.status["health"]["shown"]
        return [self.name, self.status["state"], health, *self.labels]


KEYS: Keys[Row] = {
    "lag": lambda row: (most_first(row.status["lag"]), row.name),
    "age": lambda row: (most_first(row.status["lag_seconds"]), row.name),
    "name": lambda row: row.name,
    "state": lambda row: (
        not row.is_unwell,
        row.status["state"],
        row.status["health"]["shown"],
        row.name,
    ),
}


def rows(picture: Picture) -> list[Row]:
    flows = {flow.flow: flow for flow in picture.flows}
    parts: dict[str, list[str]] = {}
    for flow in picture.flows:
        if flow.part_of:
            parts.setdefault(flow.part_of, []).append(flow.flow)
    return [
        Row(status["flow"], status, flows.get(status["flow"]), parts.get(status["flow"], ()))
        for status in picture.status["flows"]
    ]


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    picture = console.pictures.look()
    return rendering.page(
        request,
        "flows.html",
        list=listing(request, rows(picture), words=lambda row: row.words, keys=KEYS),
        damaged=damaged_in(
            picture, paths.flow, paths.revision, paths.plan, paths.plan_bucket, paths.partitions
        ),
    )


ROUTES = [Route("/flows", page)]
