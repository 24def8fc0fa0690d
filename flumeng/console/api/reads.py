"""The reads of the API: each gives the JSON that a command prints, by the same query."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.api import cluster_reads, data_reads, flow_reads, node_reads
from flumeng.console.api.answers import if_changed, page_of
from flumeng.console.api.read import Given, Read
from flumeng.console.console import Console
from flumeng.control.queries.overview import FlowDetail

READS: Sequence[Read] = (
    *cluster_reads.READS,
    *flow_reads.READS,
    *node_reads.READS,
    *data_reads.READS,
)


def routes() -> list[Route]:
    return [Route(read.path, _endpoint(read), methods=["GET"]) for read in READS]


def _endpoint(read: Read) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        given = read.given(request.path_params, request.query_params.multi_items())
        value = _value(request.app.state.console, read, given)
        link = ""
        if read.paging:
            value, link = page_of(value, read.paging, given, request.url)
        response = as_json(value)
        if link:
            response.headers["link"] = link
        revision = value.revision if isinstance(value, FlowDetail) else None
        return if_changed(request, response, revision)

    return answer


def _value(console: Console, read: Read, given: Given) -> Any:
    if not read.shared_seconds:
        return read.query(console, given)
    own = tuple((name, value) for name, value in given.items() if name not in ("limit", "after"))
    if not read.paging:
        own = tuple(given.items())
    key = (read.name, *((name, str(value)) for name, value in own))
    return console.shared.answer(key, lambda: read.query(console, given), read.shared_seconds)


def as_json(value: Any) -> Response:
    """Return the answer in JSON; dataclasses become objects, as the CLI prints them."""
    return Response(json.dumps(value, default=dataclasses.asdict), media_type="application/json")
