"""The editor of a flow: it checks while one types, tries filters, and previews moves of tasks."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.config import FlowSpec, Problem, SpecError, check_flow
from flumeng.config.document import MAX_BYTES
from flumeng.config.flow_names import why_not_applied
from flumeng.config.guarantees import promise
from flumeng.console.api.reads import as_json
from flumeng.console.console import Console, lent
from flumeng.console.pages import rendering
from flumeng.console.pages.flow_revisions import marked
from flumeng.console.pages.flow_seen import FlowSeen, page, path_of, see
from flumeng.console.pages.forms import form_of
from flumeng.control.commands import preview
from flumeng.platform.errors import FlumengError, NotAllowedError, UserError

NEW = """\
flow: NAME
sources:
  - tail: {paths: ["/var/log/*.log"]}
sinks:
  - files: {path: /data/NAME, format: json}
"""
MOST_TRIED = 20
LINE_CHARACTERS = 10_000
VALUE_CHARACTERS = 2000
REVISION_CHARACTERS = 10
WORK = ("check", "preview", "try")


@dataclass(frozen=True)
class Checked:
    """A text that was checked. ``promises``: its guarantees, in sentences."""

    problems: Sequence[Problem]
    spec: FlowSpec | None = None
    promises: Sequence[str] = ()


def checked(text: str, flow: str | None) -> Checked:
    """Check a text as `flumeng flow validate`. ``flow``: the only one that it may be of."""
    if len(text.encode()) > MAX_BYTES:
        return Checked([Problem(0, "", f"is larger than {MAX_BYTES // 1024} KiB")])
    try:
        spec = check_flow(text, keep=False)
    except SpecError as error:
        return Checked(error.problems)
    why = why_not_applied(spec.flow)
    if flow is not None and spec.flow != flow:
        why = f"this page edits flow {flow}, and the text is of flow {spec.flow}"
    if why:
        return Checked([Problem(1, "flow", why)])
    return Checked((), spec, tuple(promise(spec)))


@dataclass(frozen=True)
class Shown:
    """The results below the editor. ``problem``: why there is none."""

    check: Checked | None = None
    diff: Sequence[tuple[str, str]] = ()
    planned: preview.Preview | None = None
    tried: Sequence[Mapping[str, Any]] = ()
    problem: str = ""


async def edit(request: Request) -> Response:
    seen = await run_in_threadpool(see, request)
    request.state.viewer.require(seen.name)
    return await _edit(request, seen)


async def new(request: Request) -> Response:
    _require_writer(request)
    return await _edit(request, None)


def _require_writer(request: Request) -> None:
    viewer = request.state.viewer
    if viewer.role == "viewer":
        raise NotAllowedError(
            f"{viewer.name} may not change flows: ask an administrator for the role operator"
        )


async def _edit(request: Request, seen: FlowSeen | None) -> Response:
    current = seen.detail.text if seen and seen.detail else ""
    text, events, revision = current or NEW, "", seen.revision if seen else 0
    shown = Shown()
    if request.method == "POST":
        form = await form_of(request)
        text = form.get("text", "").replace("\r\n", "\n")
        events = form.get("events", "").replace("\r\n", "\n")
        seen_revision = form.get("revision_seen", "")
        if seen_revision.isdecimal() and len(seen_revision) < REVISION_CHARACTERS:
            revision = int(seen_revision)
        work = form.get("work", "check")
        if work not in WORK:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"work: expected one of {', '.join(WORK)}")
        shown = await run_in_threadpool(
            _results, request, seen, work, text, events, revision=revision
        )
    elif seen and seen.detail is None:
        shown = Shown(problem=seen.problem)
    values: dict[str, Any] = {
        "text": text,
        "events": events,
        "revision": revision,
        "shown": shown,
        "action": path_of(seen.name, "edit") if seen else "/flows/new",
        "most_tried": MOST_TRIED,
    }
    if seen is None:
        return await run_in_threadpool(rendering.page, request, "flow_new.html", **values)
    return await run_in_threadpool(page, request, "flow_edit.html", seen, "edit", **values)


def _results(
    request: Request, seen: FlowSeen | None, work: str, text: str, events: str, *, revision: int
) -> Shown:
    console: Console = request.app.state.console
    check = checked(text, seen.name if seen else None)
    if check.spec is None or work == "check":
        return Shown(check)
    try:
        if work == "preview":
            request.state.viewer.require(check.spec.flow)
            current = seen.detail.text if seen and seen.detail else ""
            planned = previewed(console, check.spec.flow, text, revision)
            return Shown(check, marked(difference(check.spec.flow, current, text)), planned)
        return Shown(check, tried=tried(console, text, events))
    except FlumengError as error:
        return Shown(check, problem=str(error))


def previewed(console: Console, flow: str, text: str, revision: int) -> preview.Preview:
    """Return the moves if the text were applied, from the copy of the cluster."""

    def plan() -> preview.Preview:
        with console.copy.query() as cache:
            return preview.apply(cache, {flow: text}, revision or None)

    key = ("preview", flow, revision, sha256(text.encode()).hexdigest())
    return console.shared.answer(key, plan)


def difference(flow: str, current: str, text: str) -> str:
    lines = difflib.unified_diff(
        current.splitlines(), text.splitlines(), f"{flow} now", f"{flow} as edited", lineterm=""
    )
    return "\n".join(lines)


def tried(console: Console, text: str, lines: str) -> Sequence[Mapping[str, Any]]:
    """Return the effect of each filter on each line, as ``Trials.explain``. Raises its errors."""
    events = events_of(lines)
    if not events:
        raise UserError("no event to try: paste lines into the field below, one event each")
    trials = lent(console.trials, "flow try --explain")
    return [
        {
            "event": _bounded(each["event"]),
            "steps": [
                {
                    **step,
                    "outcome": step["outcome"][:VALUE_CHARACTERS],
                    "before": _bounded(step["before"]),
                    "rows": [*map(_bounded, step["rows"])],
                }
                for step in each["steps"]
            ],
        }
        for each in trials.explain(text, events)
    ]


def events_of(lines: str) -> list[Mapping[str, Any]]:
    """Return an event for each line: one that a tap has shown as JSON, or else the line as body."""
    events: list[Mapping[str, Any]] = []
    for line in lines.splitlines()[: 10 * MOST_TRIED]:
        if line.strip() and len(events) < MOST_TRIED:
            events.append(_event(line[:LINE_CHARACTERS]))
    return events


def _event(line: str) -> Mapping[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {"body": line}
    if not isinstance(event, dict) or not {"body", "ts", "journal"} <= event.keys():
        return {"body": line}
    attrs = event.get("attrs")
    return {
        "body": str(event["body"]),
        "ts": event["ts"] if isinstance(event["ts"], str) else None,
        "host": event["host"] if isinstance(event.get("host"), str) else None,
        "attrs": {str(key): str(value) for key, value in attrs.items()}
        if isinstance(attrs, dict)
        else {},
    }


def _bounded(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, indent=1)[:VALUE_CHARACTERS]


async def check(request: Request) -> Response:
    """The problems of a text as JSON, for the script that checks while one types."""
    _require_writer(request)
    form = await form_of(request)
    flow = request.path_params.get("flow")
    found = await run_in_threadpool(checked, form.get("text", "").replace("\r\n", "\n"), flow)
    return as_json({"problems": found.problems, "promises": found.promises})


ROUTES = [
    Route("/flows/new", new, methods=["GET", "POST"]),
    Route("/flows/new/check", check, methods=["POST"]),
    Route("/flows/{flow}/edit", edit, methods=["GET", "POST"]),
    Route("/flows/{flow}/check", check, methods=["POST"]),
]
