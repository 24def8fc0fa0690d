"""Entity tags and pages of answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import Response

from flumeng.console.api.read import Given, Paging

REVISION_TAG = re.compile(r'"(\d{1,9})(?:-[0-9a-f]+)?"')
"""The entity tag of a flow: its revision, and perhaps a digest of the answer."""


def if_changed(request: Request, response: Response, revision: int | None = None) -> Response:
    """Return the answer with its entity tag, or 304 if the client has it. ``revision``: of a flow,
    which ``If-Match`` compares alone."""
    digest = hashlib.blake2b(bytes(response.body), digest_size=8).hexdigest()
    tag = f'"{digest}"' if revision is None else f'"{revision}-{digest}"'
    response.headers["etag"] = tag
    response.headers["cache-control"] = "private, no-cache"
    asked = request.headers.get("if-none-match", "")
    tags = [each.strip().removeprefix("W/") for each in asked.split(",")]
    if tag in tags or tags == ["*"]:
        kept = {name: response.headers[name] for name in ("etag", "cache-control")}
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=kept)
    return response


def page_of(rows: Sequence[Any], paging: Paging, given: Given, url: URL) -> tuple[list[Any], str]:
    """Return the rows behind ``after``, at most ``limit`` of them, and a header Link to the next
    page, or an empty text. ``rows`` are sorted by ``paging``."""
    shown = list(rows)
    if "after" in given:
        after = paging.order(given["after"])
        shown = [row for row in shown if paging.order(paging.key(row)) > after]
    limit = given.get("limit", len(shown))
    if len(shown) <= limit:
        return shown, ""
    shown = shown[:limit]
    following = url.include_query_params(after=paging.key(shown[-1]))
    return shown, f'<{following.path}?{following.query}>; rel="next"'
