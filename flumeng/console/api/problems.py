"""Errors as ``application/problem+json`` (RFC 9457), with the sentences of the CLI."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from flumeng.console.who.refusals import (
    LogInError,
    LongHeadersError,
    MisdirectedError,
    TooLargeError,
    TooManyError,
    TooSlowError,
)
from flumeng.platform.errors import (
    ConflictError,
    CorruptError,
    FlumengError,
    ForbiddenError,
    NotAllowedError,
    UnavailableError,
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
    (UserError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (ConflictError, HTTPStatus.CONFLICT),
    (UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (CorruptError, HTTPStatus.INTERNAL_SERVER_ERROR),
)
"""The first that an error is an instance of."""


def status_of(error: FlumengError) -> HTTPStatus:
    return next(
        (status for kind, status in STATUSES if isinstance(error, kind)),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )


def problem(status: HTTPStatus, detail: str, **more: Any) -> JSONResponse:
    """Return the answer for an error. ``more``: members of its own, such as ``problems``."""
    return JSONResponse(
        {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail, **more},
        status,
        media_type="application/problem+json",
    )
