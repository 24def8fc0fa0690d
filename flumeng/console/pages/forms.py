"""Reads the fields of a form."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

MOST_BYTES = 2 << 20


async def form_of(request: Request) -> Mapping[str, str]:
    """Return the fields of a urlencoded form, the last of each name. Raises HTTPException, 413 for
    more than MOST_BYTES, 400 for another body."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form is larger than {MOST_BYTES} bytes"
            )
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the body is not a form") from error
