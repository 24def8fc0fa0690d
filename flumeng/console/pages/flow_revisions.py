"""The revisions of a flow: their differences, the rollout, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.config import SpecError, parse_flow
from flumeng.console.pages.flow_seen import FlowSeen, Offer, offer, page, see, whole
from flumeng.control.commands import preview
from flumeng.control.commands.lookup import require_revision
from flumeng.control.queries import history
from flumeng.control.queries.history import Difference
from flumeng.platform.errors import FlumengError


def show(request: Request) -> Response:
    console = request.app.state.console
    seen = see(request)
    old, new, back = whole(request, "old", 0), whole(request, "new", 0), whole(request, "back", 0)
    problems: list[str] = []
    compared: Difference | None = None
    planned = None
    with console.copy.query() as cache:
        rows = []
        try:
            rows = history.history(cache, seen.name)[::-1]
            if old or len(rows) > 1:
                compared = history.difference(cache, seen.name, old or None, new or None)
        except FlumengError as error:
            problems.append(str(error))
    if back and request.state.viewer.may_change(seen.name):
        try:
            planned = _planned_back(request, seen.name, back)
        except FlumengError as error:
            problems.append(str(error))
    return page(
        request,
        "flow_revisions.html",
        seen,
        "revisions",
        rows=rows,
        problems=problems,
        compared=compared,
        diff=marked(compared.diff if compared else ""),
        steps=_steps(seen),
        rollout=_rollout(seen),
        back=back,
        planned=planned,
        offer=offer,
        offers=_rollout_offers(request, seen),
    )


def _planned_back(request: Request, flow: str, number: int) -> preview.Preview:
    """Return the moves of a rollback; viewers share the answer."""
    console = request.app.state.console

    def plan() -> preview.Preview:
        with console.copy.query() as cache:
            text = require_revision(cache, flow, number).text
            return preview.apply(cache, {flow: text})

    found: preview.Preview = console.shared.answer(("rollback", flow, number), plan)
    return found


def marked(diff: str) -> list[tuple[str, str]]:
    """Return the lines of a unified diff, each with ``new``, ``old``, ``place`` or empty."""
    kinds = {"+": "new", "-": "old", "@": "place"}
    lines = diff.splitlines()
    head = [("place", line) for line in lines[:2]]
    return [*head, *((kinds.get(line[:1], ""), line) for line in lines[2:])]


def _rollout(seen: FlowSeen) -> str:
    """Return how the flow's text rolls out its revisions."""
    if seen.detail is None:
        return ""
    try:
        options = parse_flow(seen.detail.text).rollout
    except SpecError:
        return ""
    if options is None:
        return "All tasks take a new revision at once, since the text has no rollout."
    return (
        f"A canary of {options.canary} tasks of each kind takes a new revision first, then waves "
        f"of at most {options.max_parallel} tasks."
    )


def _steps(seen: FlowSeen) -> Iterator[tuple[str, str]]:
    """Yield the steps of a rollout under way, each ``done``, ``now`` or ``later``."""
    rollout = seen.detail.rollout if seen.detail else seen.row.rollout if seen.row else None
    if rollout is None:
        return
    canary = rollout.stage == "canary"
    yield f"canary of {rollout.canary}", "now" if canary else "done"
    yield f"waves of at most {rollout.max_parallel}", "later" if canary else "now"
    yield "all tasks", "later"


def _rollout_offers(request: Request, seen: FlowSeen) -> Sequence[Offer]:
    rollout = seen.detail.rollout if seen.detail else None
    if rollout is None or not request.state.viewer.may_change(seen.name):
        return ()
    verbs = ("resume" if rollout.paused else "pause", "promote", "abort")
    return [
        offer(
            verb.capitalize(), f"rollout-{verb}", f"flow rollout {verb} {seen.name}", flow=seen.name
        )
        for verb in verbs
    ]


ROUTES = [Route("/flows/{flow}/revisions", show)]
