"""A flow over hours or weeks, from Prometheus: lag, rates, latency, and retries of sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.drawing.chart import chart
from flumeng.console.pages.flow_seen import given, page, see
from flumeng.console.prometheus import POINTS, Prometheus, Recorded, quoted
from flumeng.platform.errors import UnavailableError, UserError

SPANS = {"1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0}
RATE = "[5m]"
KEEP_SECONDS = 15.0


@dataclass(frozen=True)
class Question:
    """``query``: PromQL, in which FLOW stands for the flow's name. ``by``: the label that tells
    several series apart."""

    title: str
    unit: str
    query: str
    by: str = ""


QUESTIONS = (
    Question("Oldest undelivered event", "s", "max(flumeng_flow_lag_seconds{flow=FLOW})"),
    Question("Events behind", "events", "sum(flumeng_flow_lag_events{flow=FLOW})"),
    Question("Received", "events/s", f"sum(rate(flumeng_ingest_events_total{{flow=FLOW}}{RATE}))"),
    Question(
        "Delivered", "events/s", f"sum(rate(flumeng_collect_events_total{{flow=FLOW}}{RATE}))"
    ),
    Question(
        "Latency from receipt to ack, 99 of 100 events",
        "s",
        "histogram_quantile(0.99, sum by (le) "
        f"(rate(flumeng_flow_latency_seconds_bucket{{flow=FLOW}}{RATE})))",
    ),
    Question(
        "Write of a split, 99 of 100",
        "s",
        "histogram_quantile(0.99, sum by (sink, le) "
        f"(rate(flumeng_sink_write_seconds_bucket{{flow=FLOW}}{RATE})))",
        "sink",
    ),
    Question(
        "Retries in five minutes",
        "retries",
        f"sum by (sink) (increase(flumeng_sink_retries_total{{flow=FLOW}}{RATE}))",
        "sink",
    ),
    Question(
        "Dead letters in five minutes",
        "events",
        f"sum(increase(flumeng_collect_dead_letters_total{{flow=FLOW}}{RATE}))",
    ),
)


@dataclass(frozen=True)
class Drawn:
    """A chart with its title. Without one: ``problem``, or nothing is recorded."""

    title: str
    chart: Markup | None = None
    problem: str = ""


def show(request: Request) -> Response:
    console = request.app.state.console
    seen = see(request)
    prometheus: Prometheus | None = console.prometheus
    if prometheus is None:
        raise HTTPException(404, "there is no longer history: start the console with --prometheus")
    span = given(request.query_params, "span") or "1d"
    if span not in SPANS:
        raise UserError(f"span is one of {', '.join(SPANS)}, not {span}")

    def ask() -> Sequence[Drawn]:
        with ThreadPoolExecutor(4) as pool:
            answers = [
                pool.submit(_drawn, prometheus, question, seen.name, console.clock(), SPANS[span])
                for question in QUESTIONS
            ]
            return [one for answer in answers for one in answer.result()]

    drawn = console.shared.answer(("history", seen.name, span), ask, KEEP_SECONDS)
    return page(
        request, "flow_history.html", seen, "history", drawn=drawn, spans=[*SPANS], span=span
    )


def _drawn(
    prometheus: Prometheus, question: Question, flow: str, now: float, seconds: float
) -> list[Drawn]:
    query = question.query.replace("FLOW", quoted(flow))
    try:
        series = prometheus.over(query, now, seconds)
    except UnavailableError as error:
        return [Drawn(question.title, problem=str(error))]
    return list(_charts(question, series, seconds)) or [Drawn(question.title)]


def _charts(question: Question, series: Sequence[Recorded], seconds: float) -> Iterator[Drawn]:
    for one in series:
        title = _title(question, one.labels)
        step = seconds / (POINTS - 1)
        yield Drawn(title, chart(one.values, step, f"{title}, {question.unit}", question.unit))


def _title(question: Question, labels: Mapping[str, str]) -> str:
    name = labels.get(question.by, "")
    return f"{question.title}, {name}" if name else question.title


ROUTES = [Route("/flows/{flow}/history", show)]
