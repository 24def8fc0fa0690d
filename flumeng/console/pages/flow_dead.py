"""The dead letters of a flow: counts by place and reason, and the newest ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTimeError
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console, lent
from flumeng.console.drawing.graph import shortened
from flumeng.console.pages.flow_seen import given, offer, page, see
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import FlumengError, UnavailableError

MOST_KINDS = 100
SAMPLE = 10
VALUE_CHARACTERS = 2000
VARIABLE = re.compile(r"'\.\.\.'|\"\.\.\.\"|\[\.\.\.\]|N")
"""Placeholders of the variable parts of reasons, see ``connectors.dead_letters.summary``."""
SECONDS = 8.0
KEEP_SECONDS = 20.0
READING = ThreadPoolExecutor(2, thread_name_prefix="dead letters")
"""Storage that does not answer holds these threads, and no other page."""

T = TypeVar("T")


def show(request: Request) -> Response:
    console: Console = request.app.state.console
    seen = see(request)
    reason = given(request.query_params, "reason")
    kinds: Mapping[str, Any] | None = None
    newest: Sequence[Mapping[str, Any]] = ()
    problem = ""
    try:
        letters = lent(console.connectors, "flow dead")
        kinds = _in_time(
            console, ("dead", seen.name), lambda cache: letters.kinds(cache, seen.name)
        )
        newest = _in_time(
            console,
            ("dead sample", seen.name, reason),
            lambda cache: [*map(_shown, letters.newest(cache, seen.name, SAMPLE, reason))],
        )
    except FlumengError as error:
        problem = str(error)
    return page(
        request,
        "flow_dead.html",
        seen,
        "dead",
        kinds=kinds,
        most=MOST_KINDS,
        newest=newest,
        problem=problem,
        reason=reason,
        offer=offer,
        common_part=common_part,
    )


def common_part(reason: str) -> str:
    """Return the longest part of a kind's reason that all its dead letters have, to select them."""
    return max(VARIABLE.split(reason), key=len).strip()


def _in_time(console: Console, key: tuple[str, ...], read: Callable[[ReadableStore], T]) -> T:
    def queried() -> T:
        with console.copy.query() as cache:
            return read(cache)

    def make() -> T:
        try:
            return READING.submit(queried).result(SECONDS)
        except NotInTimeError as error:
            raise UnavailableError(
                f"the dead letters were not read within {SECONDS:.0f} s: use `flumeng flow dead`"
            ) from error

    return console.shared.answer(key, make, KEEP_SECONDS)


def _shown(text: str) -> Mapping[str, Any]:
    """Return a dead letter with bounded values, those about its death apart."""
    letter: Mapping[str, Any] = json.loads(text)
    values = {
        name: shortened(
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
            VALUE_CHARACTERS,
        )
        for name, value in letter.items()
    }
    dead = {
        name.removeprefix("dead_"): values.pop(name) for name in [*values] if name[:5] == "dead_"
    }
    return {"dead": dead, "values": values}


ROUTES = [Route("/flows/{flow}/dead", show)]
