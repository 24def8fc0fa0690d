"""The audit: each change with its author, time and reason, newest first."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pages.listing import listing, parameters
from flumeng.control.commands.operator import KEEP_AUDIT
from flumeng.control.queries import history
from flumeng.control.queries.history import AuditRow

FILTERS = ("who", "command", "flow")


def _entries(console: Console) -> Sequence[AuditRow]:
    def make() -> Sequence[AuditRow]:
        with console.copy.query() as cache:
            return history.audit(cache, KEEP_AUDIT)[::-1]

    return console.shared.answer("audit", make)


def matches(entry: AuditRow, *, who: str = "", command: str = "", flow: str = "") -> bool:
    """Return whether an entry's author and command contain these texts, without regard to case,
    and whether a word of the command is ``flow``, or begins with it and a slash."""
    words = entry.command.replace(",", " ").split()
    return (
        who.casefold() in entry.who.casefold()
        and command.casefold() in entry.command.casefold()
        and (not flow or any(word == flow or word.startswith(f"{flow}/") for word in words))
    )


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    asked = parameters(request, *FILTERS)
    entries = _entries(console)
    return rendering.page(
        request,
        "audit.html",
        list=listing(
            request,
            [entry for entry in entries if matches(entry, **asked)],
            words=lambda entry: (entry.who, entry.command, entry.reason),
            filters=FILTERS,
        ),
        kept=len(entries),
        most=KEEP_AUDIT,
    )


ROUTES = [Route("/audit", page)]
