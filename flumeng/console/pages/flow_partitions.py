"""The partitions of a flow with their lag, now and over the last hour, the worst first."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.lag_history import MOST_PARTITIONS
from flumeng.console.pages.flow_seen import PAGE_ROWS, given, page, see, whole
from flumeng.platform.errors import FlumengError


def show(request: Request) -> Response:
    console = request.app.state.console
    seen = see(request)
    number = whole(request, "page", 1, least=1)
    looked_for = given(request.query_params, "q")
    try:
        lag, problem = console.lag(seen.name), ""
    except FlumengError as error:
        lag, problem = None, str(error)
    rows = [row for row in lag.partitions if looked_for in row.partition] if lag else []
    return page(
        request,
        "flow_partitions.html",
        seen,
        "partitions",
        lag=lag,
        problem=problem,
        rows=rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS],
        series=console.lags.look(seen.name, lag) if lag else None,
        most_series=MOST_PARTITIONS,
        found=len(rows),
        asked=looked_for,
        number=number,
        pages=-(-len(rows) // PAGE_ROWS),
    )


ROUTES = [Route("/flows/{flow}/partitions", show)]
