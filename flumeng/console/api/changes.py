"""The changes of the API: each is an action, with a JSON body, a precondition and a key."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.config import SpecError
from flumeng.console.actions.action import Action
from flumeng.console.actions.doing import Change, FieldsError, PreconditionError, read_fields
from flumeng.console.actions.table import ACTIONS
from flumeng.console.api.answers import REVISION_TAG
from flumeng.console.api.problems import problem, problem_of
from flumeng.console.api.reads import as_json
from flumeng.platform.errors import FlumengError, UserError

JSON = "application/json"
KEY = re.compile(r"[\x21-\x7e]{1,200}")
DRY_RUN = {"true": True, "false": False}


class HeaderError(UserError):
    """A header or a parameter cannot be read."""


class MediaTypeError(UserError):
    """The body is not JSON."""


def routes() -> list[Route]:
    return [
        Route(action.path, _endpoint(action), methods=["POST"], name=action.name)
        for action in ACTIONS.values()
    ]


def etag(revision: int) -> str:
    """Return the entity tag of a flow at a revision, as ``If-Match`` takes it."""
    return f'"{revision}"'


def _endpoint(action: Action) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        body = await request.body()
        return await run_in_threadpool(_answer, action, request, body)

    return answer


def _answer(action: Action, request: Request, body: bytes) -> Response:
    try:
        return _done(action, request, body)
    except FieldsError as error:
        rows = [f"{name}: {why}" for name, why in error.problems.items()]
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), problems=rows)
    except SpecError as error:
        rows = [*map(str, error.problems)]
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), problems=rows)
    except PreconditionError as error:
        refused = problem(HTTPStatus.PRECONDITION_FAILED, str(error), revision=error.revision)
        refused.headers["etag"] = etag(error.revision)
        return refused
    except HeaderError as error:
        return problem(HTTPStatus.BAD_REQUEST, str(error))
    except MediaTypeError as error:
        return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, str(error))
    except FlumengError as error:
        return problem_of(error, request.app.state.console.away_since)


def _done(action: Action, request: Request, body: bytes) -> Response:
    console, viewer = request.app.state.console, request.state.viewer
    values = _read_body(request, body)
    if overlap := sorted(values.keys() & set(action.names)):
        raise FieldsError(dict.fromkeys(overlap, "it is in the path"))
    fields = (*(f for f in action.fields if f.name in action.names), *action.body_fields)
    given = dict(read_fields(fields, {**values, **request.path_params}))
    reason = given.pop("reason", "")
    if_revision = _precondition(action, request)
    key = request.headers.get("idempotency-key", "")
    if "idempotency-key" in request.headers and not KEY.fullmatch(key):
        raise HeaderError("Idempotency-Key has 1 to 200 visible characters of ASCII")
    change = Change(console, viewer, action, given, reason, if_revision)
    if _is_dry_run(request):
        with console.copy.query() as cache:
            seen = change.rehearse(cache)
        return _with_etag(
            seen.revision,
            {
                "will": [*seen.foreseen.sentences],
                "commands": [*seen.commands],
                "command": action.command(
                    given, hosts=console.hosts, reason=reason, if_revision=if_revision
                ),
                "preview": seen.foreseen.preview,
            },
        )
    outcome = change.do(key)
    return _with_etag(outcome.revision, outcome.answer)


def _with_etag(revision: int | None, value: Any) -> Response:
    response = as_json(value)
    if revision is not None:
        response.headers["etag"] = etag(revision)
    return response


def _read_body(request: Request, body: bytes) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise MediaTypeError(f"the body is {kind or 'of no type'}: send {JSON}")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FieldsError({"": "the body is not an object"})
    return value


def _precondition(action: Action, request: Request) -> int | None:
    """Return the revision of ``If-Match``; 0 for ``If-None-Match: *``. Raises HeaderError, and
    UserError for both."""
    wanted = request.headers.get("if-match")
    match = REVISION_TAG.fullmatch(wanted.strip()) if wanted is not None else None
    if wanted is not None and match is None:
        raise HeaderError(f'If-Match is the revision of a flow, such as "7", not {wanted}')
    absent = request.headers.get("if-none-match")
    if absent not in (None, "*"):
        raise HeaderError(f"If-None-Match of a change is *, not {absent}")
    if match is not None and absent is not None:
        raise UserError("If-Match and If-None-Match exclude each other")
    if (match or absent) and "flow" not in action.names:
        raise HeaderError("If-Match goes with changes of a flow")
    if absent is not None:
        return 0
    return int(match[1]) if match is not None else None


def _is_dry_run(request: Request) -> bool:
    if unknown := sorted(request.query_params.keys() - {"dry-run"}):
        raise HeaderError(f"there is no parameter {unknown[0]}: only dry-run")
    if len(request.query_params.getlist("dry-run")) > 1:
        raise HeaderError("dry-run is given more than once")
    text = request.query_params.get("dry-run", "false")
    if text not in DRY_RUN:
        raise HeaderError(f"dry-run is true or false, not {text}")
    return DRY_RUN[text]
