"""The reads of the API: each gives what a command prints with ``--json``, by the same query."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.control.queries import details, history, journals, overview
from flumeng.control.queries.lag import lag_of_flow

Given = Mapping[str, str]
"""The names in the path and the parameters of the query."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a query. ``schema``: JSON Schema of its value."""

    name: str
    doc: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Read:
    """``path``: below ``/api/v1``, with names in braces. ``command``: gives the same on a terminal.
    ``answer``: the type of what ``read`` returns, for the API's description."""

    path: str
    command: str
    doc: str
    answer: Any
    read: Callable[[Console, Given], Any]
    parameters: tuple[Parameter, ...] = ()


def _status(console: Console, _given: Given) -> Any:
    return console.pictures.look().status


def _flows(console: Console, _given: Given) -> Any:
    with console.copy.query() as cache:
        return overview.flows(cache, checked=False)


def _flow(console: Console, given: Given) -> Any:
    with console.copy.query() as cache:
        return overview.flow(cache, given["flow"], console.clock())


def _lag(console: Console, given: Given) -> Any:
    with console.copy.query() as cache:
        return lag_of_flow(cache, console.asking.accounts, given["flow"], console.clock())


def _nodes(console: Console, _given: Given) -> Any:
    with console.copy.query() as cache:
        return overview.nodes(cache)


def _story(console: Console, given: Given) -> Any:
    with console.copy.query() as cache:
        return details.event_log(cache, given["node"])


def _journals(console: Console, _given: Given) -> Any:
    with console.copy.query() as cache:
        return journals.journals(cache, console.asking.accounts, console.clock())


def _audit(console: Console, given: Given) -> Any:
    with console.copy.query() as cache:
        return history.audit(cache, int(given.get("last", "20")))


LAST = Parameter("last", "The newest entries.", {"type": "integer", "minimum": 1, "maximum": 500})
READS: tuple[Read, ...] = (
    Read("/status", "flumeng status", "The health of the cluster.", dict[str, Any], _status),
    Read("/flows", "flumeng flow list", "All flows.", list[overview.FlowRow], _flows),
    Read("/flows/{flow}", "flumeng flow show {flow}", "One flow.", overview.FlowDetail, _flow),
    Read("/flows/{flow}/lag", "flumeng flow lag {flow}", "How far it is behind.", Any, _lag),
    Read("/nodes", "flumeng node list", "All nodes.", list[overview.NodeRow], _nodes),
    Read("/nodes/{node}/story", "flumeng node story {node}", "Its event log.", Any, _story),
    Read(
        "/journals", "flumeng journal list", "All journals.", list[journals.JournalRow], _journals
    ),
    Read("/audit", "flumeng cluster audit", "The audit.", list[history.AuditRow], _audit, (LAST,)),
)


def routes() -> list[Route]:
    return [Route(read.path, _endpoint(read), methods=["GET"]) for read in READS]


def _endpoint(read: Read) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        given = {**request.query_params, **request.path_params}
        return as_json(read.read(request.app.state.console, given))

    return answer


def as_json(value: Any) -> Response:
    """Return the answer in JSON; dataclasses become objects, as the CLI prints them."""
    return Response(json.dumps(value, default=dataclasses.asdict), media_type="application/json")
