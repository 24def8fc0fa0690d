"""The description of the API in OpenAPI 3.1, made from the tables of reads and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flumeng import __version__
from flumeng.console.actions.action import Action
from flumeng.console.actions.table import ACTIONS
from flumeng.console.api.answers import REVISION_TAG
from flumeng.console.api.problems import Failure
from flumeng.console.api.read import Parameter, Read
from flumeng.console.api.reads import READS
from flumeng.console.path_names import NAMES

REFERENCE = "#/components/schemas/{name}"
PROBLEM = "application/problem+json"
FAILURES: Mapping[HTTPStatus, str] = {
    HTTPStatus.BAD_REQUEST: "Some parameters cannot be read; problems names all of them.",
    HTTPStatus.UNAUTHORIZED: "The client proved no identity.",
    HTTPStatus.FORBIDDEN: "The client may not do this.",
    HTTPStatus.NOT_FOUND: "There is no such thing; the sentence has the nearest name.",
    HTTPStatus.CONFLICT: "Something changed meanwhile, or its state does not allow this.",
    HTTPStatus.PRECONDITION_FAILED: "The flow is at another revision, which revision names.",
    HTTPStatus.REQUEST_TIMEOUT: "The body did not come in time.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body is not application/json.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "This cannot be answered; the sentence says why.",
    HTTPStatus.TOO_MANY_REQUESTS: "The client asks too often; see Retry-After.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A stored record is damaged, or the console failed.",
    HTTPStatus.SERVICE_UNAVAILABLE: "ZooKeeper or a node does not answer; see Retry-After.",
}
OF_BODIES = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
CHANGES_ONLY = {HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED, *OF_BODIES}
AWAY = {
    "description": "Since when ZooKeeper has not answered, in seconds since the epoch. The answer "
    "then has the records seen before, and the nodes' answers of now.",
    "schema": {"type": "number"},
}
ETAG = {
    "description": "Identifies the answer for If-None-Match. That of a flow begins with its "
    "revision, for If-Match.",
    "schema": {"type": "string"},
}
DRY_RUN = {
    "name": "dry-run",
    "in": "query",
    "description": "Only return its effects: sentences (will), the audit's commands, the "
    "command line, and the command's preview.",
    "schema": {"enum": ["true", "false"]},
}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key with the same body gives the first answer again and does nothing, "
    "within 24 hours, while the audit keeps the change.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}
IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "description": "Only if the flow is at this revision, as in its ETag.",
    "schema": {"type": "string", "pattern": f"^{REVISION_TAG.pattern}$"},
}
IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "description": "Only if there is no such flow.",
    "schema": {"enum": ["*"]},
}
LINK = {"description": "The next page: rel=next.", "schema": {"type": "string"}}
DESCRIPTION = (
    "The same as the commands of flumeng: each read gives the JSON that its command prints. Times "
    "are seconds since the epoch. While ZooKeeper is away, reads are answered from the records "
    "seen before, and by nodes directly."
)
SECURITY = {
    "certificate": {"type": "mutualTLS", "description": "A certificate of the cluster."},
    "token": {"type": "http", "scheme": "bearer", "description": "A token, as for CI."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "flumeng",
        "description": "A signed session, after a login in the browser.",
    },
}


def routes() -> list[Route]:
    return [Route("/openapi.json", _endpoint, methods=["GET"])]


def _endpoint(_request: Request) -> Response:
    return JSONResponse(document(), headers={"cache-control": "private, no-cache"})


@lru_cache(maxsize=1)
def document() -> Mapping[str, Any]:
    """Return the whole description."""
    answers = [*(read.answer for read in READS), Failure]
    schemas, components = msgspec.json.schema_components(answers, ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for read, schema in zip(READS, schemas, strict=False):
        paths.setdefault(read.path, {})["get"] = _read(read, schema)
    for action in ACTIONS.values():
        paths.setdefault(action.path, {})["post"] = _change(action)
    paths["/events"] = {"get": EVENTS}
    paths["/openapi.json"] = {"get": _OPENAPI}
    return {
        "openapi": "3.1.0",
        "info": {"title": "flumeng", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/api/v1"}],
        "security": [{}, *({name: []} for name in SECURITY)],
        "paths": paths,
        "components": {
            "schemas": {name: _always(schema) for name, schema in components.items()},
            "securitySchemes": SECURITY,
        },
    }


def _always(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an object in an answer, where defaults are written out, too."""
    if schema.get("title") == Failure.__name__ or "properties" not in schema:
        return schema
    properties = {
        name: {key: value for key, value in each.items() if key != "default"}
        for name, each in schema["properties"].items()
    }
    return {**schema, "properties": properties, "required": list(properties)}


def _read(read: Read, schema: Mapping[str, Any]) -> dict[str, Any]:
    parameters = (*read.names, *(each.name for each in read.all_parameters))
    headers = {"ETag": ETAG, "Flumeng-ZooKeeper-Away-Since": AWAY}
    if read.paging:
        headers["Link"] = LINK
    return {
        "operationId": read.name,
        "tags": [read.path.split("/")[1]],
        "summary": read.doc,
        "description": f"On a terminal: `{read.command} --json`",
        "parameters": [
            *(_in_path(name) for name in read.names),
            *map(_in_query, read.all_parameters),
        ],
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": headers,
                "content": {"application/json": {"schema": schema}},
            },
            "304": {"description": "The client has this answer: If-None-Match."},
            **failures(named=any(name in NAMES for name in parameters)),
        },
    }


def _change(action: Action) -> dict[str, Any]:
    also = [*OF_BODIES]
    parameters = [_in_path(name) for name in action.names]
    if action.changes:
        also += [HTTPStatus.CONFLICT]
        parameters += [DRY_RUN, KEY]
    headers = {}
    if "flow" in action.names:
        also += [HTTPStatus.PRECONDITION_FAILED]
        parameters += [IF_MATCH, IF_NONE_MATCH]
        headers = {"ETag": ETAG}
    return {
        "operationId": action.name,
        "tags": [action.path.split("/")[1]],
        "summary": action.doc,
        "description": f"On a terminal: `flumeng {action.command_words}`",
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": action.body_schema}},
        },
        "responses": {
            "200": {
                "description": "The result of the change; with dry-run its effects.",
                "headers": headers,
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            **failures(named=bool(action.names), also=also),
        },
    }


def failures(*, named: bool, also: Sequence[HTTPStatus] = ()) -> dict[str, Any]:
    """Return the answers for errors. ``named``: it names something; ``also``: further answers."""
    others = CHANGES_ONLY - {*also}
    shown = [
        status
        for status in FAILURES
        if status not in others and (named or status != HTTPStatus.NOT_FOUND)
    ]
    return {
        str(status.value): {
            "description": FAILURES[status],
            "content": {PROBLEM: {"schema": {"$ref": REFERENCE.format(name=Failure.__name__)}}},
        }
        for status in shown
    }


def _in_path(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": NAMES[name],
        "schema": {"type": "string", "minLength": 1},
    }


def _in_query(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.doc,
        "schema": parameter.schema,
    }


EVENTS: Mapping[str, Any] = {
    "operationId": "events",
    "tags": ["events"],
    "summary": "Server-sent events: each new look at the cluster.",
    "description": "Events named picture. Their data is JSON with number, time, verdict (level, "
    "sentence, advice, since), the names of flows and nodes that changed (null: all may have), and "
    "zookeeper_away_since.",
    "parameters": [
        {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The number of the last event seen.",
            "schema": {"type": "string"},
        }
    ],
    "responses": {
        "200": {
            "description": "Events, until the client or the console ends.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **failures(named=False),
    },
}
_OPENAPI: Mapping[str, Any] = {
    "operationId": "openapi",
    "tags": ["openapi.json"],
    "summary": "This description.",
    "responses": {
        "200": {
            "description": "OpenAPI 3.1.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **failures(named=False),
    },
}
