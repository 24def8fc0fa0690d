"""Errors as ``application/problem+json`` (RFC 9457), with the sentences of the CLI."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, TypedDict

from starlette.responses import Response

from flumeng.console.api.read import BadParametersError
from flumeng.console.who.refusals import (
    LogInError,
    LongHeadersError,
    MisdirectedError,
    TooLargeError,
    TooManyError,
    TooSlowError,
)
from flumeng.control.queries.target_checks import TargetsFailedError
from flumeng.platform.errors import (
    ConflictError,
    CorruptError,
    FlumengError,
    ForbiddenError,
    NotAllowedError,
    UnavailableError,
    UnknownNameError,
    UserError,
)

STATUSES: tuple[tuple[type[FlumengError], HTTPStatus], ...] = (
    (LogInError, HTTPStatus.UNAUTHORIZED),
    (MisdirectedError, HTTPStatus.MISDIRECTED_REQUEST),
    (TooManyError, HTTPStatus.TOO_MANY_REQUESTS),
    (TooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (TooSlowError, HTTPStatus.REQUEST_TIMEOUT),
    (LongHeadersError, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    (NotAllowedError, HTTPStatus.FORBIDDEN),
    (ForbiddenError, HTTPStatus.FORBIDDEN),
    (UnknownNameError, HTTPStatus.NOT_FOUND),
    (BadParametersError, HTTPStatus.BAD_REQUEST),
    (UserError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (TargetsFailedError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (ConflictError, HTTPStatus.CONFLICT),
    (UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (CorruptError, HTTPStatus.INTERNAL_SERVER_ERROR),
)
"""The first that an error is an instance of."""
RETRY_SECONDS = 5
"""The header Retry-After of answers with 503."""


class _Needed(TypedDict):
    type: str
    title: str
    status: int
    detail: str


class Failure(_Needed, total=False):
    """An error, see RFC 9457. ``problems``: a sentence for each parameter or field that cannot be
    read. ``revision``: of the flow now, after a lost race. ``zookeeper_away_since``: seconds since
    the epoch."""

    problems: list[str]
    revision: int
    zookeeper_away_since: float


def status_of(error: FlumengError) -> HTTPStatus:
    return next(
        (status for kind, status in STATUSES if isinstance(error, kind)),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )


def problem(status: HTTPStatus, detail: str, **more: Any) -> Response:
    """Return the answer for an error. ``more``: members of its own, such as ``problems``."""
    values = {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail}
    return Response(
        json.dumps({**values, **more}),
        status,
        {"retry-after": str(RETRY_SECONDS)} if status == HTTPStatus.SERVICE_UNAVAILABLE else None,
        media_type="application/problem+json",
    )


def problem_of(error: FlumengError, away_since: float | None = None) -> Response:
    """Return the answer for an error of flumeng. ``away_since``: when ZooKeeper went away."""
    more: dict[str, Any] = {}
    if isinstance(error, BadParametersError):
        more["problems"] = [*error.problems.values()]
    if away_since is not None:
        more["zookeeper_away_since"] = away_since
    return problem(status_of(error), str(error), **more)
