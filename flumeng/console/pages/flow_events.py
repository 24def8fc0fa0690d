"""The tasks of a flow, and its changes in time: event logs of nodes beside the audit."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.pages.flow_seen import PAGE_ROWS, asked, given, offer, page, see, whole

LANES = {"": "all", "audit": "people", "node": "event logs", "task": "ends of tasks"}


def show(request: Request) -> Response:
    console = request.app.state.console
    seen = see(request)
    lane = given(request.query_params, "lane")
    if lane not in LANES:
        lanes = ", ".join(filter(None, LANES))
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"lane: expected one of {lanes}")
    number, tasks_number = whole(request, "page", 1, least=1), whole(request, "tasks", 1, least=1)
    moments = [moment for moment in seen.timeline.moments if lane in ("", moment.lane)]
    answers = asked(console, seen)
    first = (tasks_number - 1) * PAGE_ROWS
    return page(
        request,
        "flow_events.html",
        seen,
        "events",
        tasks=seen.tasks[first : first + PAGE_ROWS],
        tasks_number=tasks_number,
        tasks_pages=-(-len(seen.tasks) // PAGE_ROWS),
        counts={row.task: row for row in answers.counts.rows},
        problems=[*answers.problems, *seen.timeline.problems],
        moments=moments[(number - 1) * PAGE_ROWS : number * PAGE_ROWS],
        number=number,
        pages=-(-len(moments) // PAGE_ROWS),
        lane=lane,
        lanes=LANES,
        restart=lambda key: offer("Restart", "task-restart", f"task restart {key}", task=key),
    )


ROUTES = [Route("/flows/{flow}/events", show)]
