"""The parts of all pages of a flow: its head, its tabs, and the actions of a viewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pictures import Picture
from flumeng.console.verdict import of_flow
from flumeng.control.commands.lookup import require_flow
from flumeng.control.queries import history, overview
from flumeng.control.queries.counters import CounterRow, TaskCounts, counters, task_counts
from flumeng.control.queries.flow_health import UNKNOWN_HEALTH, FlowHealth
from flumeng.control.queries.lag import LagOfFlow
from flumeng.control.queries.overview import FlowDetail, FlowRow
from flumeng.control.queries.task_status import TaskRow
from flumeng.control.queries.timeline import Timeline, names, timeline
from flumeng.platform.errors import FlumengError
from zkschema import paths
from zkschema.table import NAME

TABS = (
    ("", "Overview"),
    ("partitions", "Partitions"),
    ("events", "Tasks and events"),
    ("revisions", "Revisions"),
    ("history", "History"),
    ("dead", "Dead letters"),
    ("tap", "Tap"),
    ("edit", "Edit"),
)
PAGE_ROWS = 100

T = TypeVar("T")


@dataclass(frozen=True)
class Offer:
    """An action that the viewer may take: its page, and its command line."""

    title: str
    href: str
    command: str


@dataclass(frozen=True)
class FlowSeen:
    """A flow as far as it can be read. ``row``: as in the last picture; ``detail``: None with the
    ``problem`` why. ``since``: when the cause of its health began, seconds since the epoch.
    ``causes``: with advice, as the first page has them; empty while it has older ones."""

    name: str
    row: FlowRow | None
    detail: FlowDetail | None
    problem: str
    since: float | None = None
    timeline: Timeline = field(default_factory=lambda: Timeline(()))
    causes: Sequence[tuple[str, str]] = ()

    @property
    def state(self) -> str:
        return self.detail.state if self.detail else self.row.state if self.row else "unreadable"

    @property
    def health(self) -> FlowHealth:
        return (
            self.detail.health if self.detail else self.row.health if self.row else UNKNOWN_HEALTH
        )

    @property
    def revision(self) -> int:
        return self.detail.revision if self.detail else self.row.revision if self.row else 0

    @property
    def tasks(self) -> Sequence[TaskRow]:
        return self.detail.tasks if self.detail else self.row.tasks if self.row else ()

    @property
    def delivery(self) -> str:
        return self.row.delivery if self.row else ""


def see(request: Request) -> FlowSeen:
    """Return the flow of the request. Raises HTTPException, 404, for one that does not exist."""
    console: Console = request.app.state.console
    name = str(request.path_params["flow"])
    picture = console.pictures.look()
    row = next((row for row in picture.flows if row.flow == name), None)
    with console.copy.query() as cache:
        if name not in cache.children(paths.flows()):
            raise HTTPException(HTTPStatus.NOT_FOUND, _gone(console, name))
        try:
            detail = overview.flow(cache, name, console.clock())
            moments = timeline(cache, detail)
        except FlumengError as error:
            problem = cache.why(paths.flow(name)) or str(error)
            return FlowSeen(name, row, None, problem, causes=of_flow(picture, name))
    since = began(detail, moments) or _since(picture, name)
    is_same = row is not None and row.health.cause == detail.health.cause
    causes = of_flow(picture, name) if is_same else ()
    return FlowSeen(name, row, detail, detail.problem, since, moments, causes)


def _gone(console: Console, name: str) -> str:
    """Return why there is no such flow: by whom it was deleted, or the nearest name."""
    with console.copy.query() as cache:
        try:
            rows = history.history(cache, name) if NAME.fullmatch(name) else []
            if rows and rows[-1].deleted:
                return f"flow {name} was deleted {rows[-1].deleted}"
            require_flow(cache, name)
        except FlumengError as error:
            return str(error)
    return f'there is no flow "{name}"'


def began(detail: FlowDetail, moments: Timeline) -> float | None:
    """Return when the first of the tasks that do not run well got into its state; None if all run
    or no event log has it."""
    times: list[float | None] = []
    for task in detail.tasks:
        if task.state in ("running", "stopped") and not task.health:
            continue
        times.append(state_since(moments, task))
    return min((time for time in times if time is not None), default=None)


def state_since(moments: Timeline, task: TaskRow) -> float | None:
    """Return when the task got into its state, by its node's event log; None if that lacks it."""
    return next((moment.time for moment in moments.moments if moment.about == task.key), None)


def _since(picture: Picture, name: str) -> float | None:
    """Return when this console first saw a cause about the flow; None if it always has."""
    abouts = [cause["about"] for cause in picture.status["causes"] if names(cause["about"], name)]
    seen = [picture.since[about] for about in abouts if about in picture.since]
    return min((since.at for since in seen if not since.or_longer), default=None)


@dataclass(frozen=True)
class Asked:
    """The answers of a flow's nodes. ``problems``: why some of it is missing."""

    lag: LagOfFlow | None
    counts: TaskCounts
    sources: Sequence[CounterRow]
    problems: Sequence[str]


def asked(console: Console, seen: FlowSeen) -> Asked:
    """Ask the flow's nodes for its lag and counters, all at once; viewers share the answers."""

    def counted() -> TaskCounts:
        with console.copy.query() as cache:
            return task_counts(cache, console.asking.counters, seen.tasks)

    def of_sources() -> tuple[list[CounterRow], tuple[str, ...]]:
        with console.copy.query() as cache:
            return counters(cache, console.asking.counters, seen.name)

    def all_three() -> Asked:
        problems: list[str] = []

        def result(future: Future[T], otherwise: T) -> T:
            try:
                return future.result()
            except FlumengError as error:
                problems.append(str(error))
                return otherwise

        with ThreadPoolExecutor(3) as pool:
            asked_lag: Future[LagOfFlow | None] = pool.submit(console.lag, seen.name)
            asked_counts, asked_sources = pool.submit(counted), pool.submit(of_sources)
            lag, counts = result(asked_lag, None), result(asked_counts, TaskCounts())
            sources, silent = result(asked_sources, ([], ()))
        everyone = {*counts.silent, *silent, *(lag.silent if lag else ())}
        problems += [f"node {node} does not answer" for node in sorted(everyone)]
        return Asked(lag, counts, sources, tuple(dict.fromkeys(problems)))

    return console.shared.answer(("flow", seen.name), all_three)


def offers(request: Request, seen: FlowSeen) -> list[Offer]:
    """Return the viewer's actions on the flow in its state."""
    if not request.state.viewer.may_change(seen.name):
        return []
    name = seen.name
    verbs: Iterator[tuple[str, str, str]] = iter(())
    if seen.state == "running":
        verbs = iter(
            (
                ("Pause", "flow-pause", f"flow pause {name}"),
                ("Stop", "flow-stop", f"flow stop {name}"),
                ("Limit its rate", "flow-choke", f"flow choke {name} RATE"),
            )
        )
    elif seen.state in ("suspended", "stopped"):
        verbs = iter((("Resume", "flow-resume", f"flow resume {name}"),))
    rollout = seen.detail.rollout if seen.detail else None
    back = (("Abort the rollout", "rollout-abort", f"flow rollout abort {name}"),)
    more = (
        *(back if rollout else ()),
        ("Reset offsets", "flow-reset", f"flow reset {name}"),
        ("Delete", "flow-delete", f"flow delete {name}"),
    )
    return [offer(title, action, command, flow=name) for title, action, command in (*verbs, *more)]


def offer(title: str, action: str, command: str, **given: object) -> Offer:
    query = rendering.urlencoded({name: str(value) for name, value in given.items()})
    return Offer(title, f"/do/{action}?{query}", f"flumeng {command}")


def path_of(flow: str, part: str = "", **query: object) -> str:
    """Return the path of a flow's page; that of a flow named ``new`` ends with a slash."""
    path = f"/flows/{quote(flow, '', errors=rendering.NO_TEXT)}" + (
        f"/{part}" if part else "/" if flow == "new" else ""
    )
    given = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return path + (f"?{rendering.urlencoded(given)}" if given else "")


def page(request: Request, template: str, seen: FlowSeen, part: str, **values: Any) -> Response:
    """Render a page of a flow; templates have ``seen``, ``part``, ``tabs`` and ``path_of``."""
    viewer = request.state.viewer
    tabs = [
        (path_of(seen.name, tab), title, tab == part)
        for tab, title in TABS
        if tab not in _hidden(request, may_change=viewer.may_change(seen.name))
    ]
    return rendering.page(
        request,
        template,
        seen=seen,
        part=part,
        tabs=tabs,
        path_of=path_of,
        may_change=viewer.may_change(seen.name),
        **values,
    )


def _hidden(request: Request, *, may_change: bool) -> set[str]:
    """Return the tabs that this viewer does not see."""
    hidden = set() if may_change else {"edit"}
    return hidden if request.app.state.console.prometheus else hidden | {"history"}


def whole(request: Request, name: str, default: int, least: int = 0) -> int:
    """Return a parameter as a number. Raises HTTPException, 400, for other text."""
    text = request.query_params.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or value > 10**9:
        raise HTTPException(
            HTTPStatus.BAD_REQUEST,
            f"{name}: expected a whole number from {least}, not {text[:40]!r}",
        )
    return value


def given(query: Mapping[str, str], name: str, most: int = 2000) -> str:
    """Return a parameter's text, stripped. Raises HTTPException, 400, when it is too long."""
    text = query.get(name, "").strip()
    if len(text) > most:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name}: longer than {most} characters")
    return text
