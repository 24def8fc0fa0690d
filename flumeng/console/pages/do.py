"""``/do/NAME``: shows the effects of an action and its command line; a second click does it.

A form carries the contents of its page: the fields, the flow's revision, and a key. Other fields,
or a flow that was changed meanwhile, show the page again. The key makes a second click the same
request, so that it acts once.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from flumeng.console.actions import doing
from flumeng.console.actions.action import Action, Field, Given
from flumeng.console.actions.doing import FieldsError, PreconditionError, Rehearsal
from flumeng.console.actions.table import action_named
from flumeng.console.api.problems import status_of
from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pages.forms import form_of
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands import requests
from flumeng.control.commands.requests import OtherBodyError
from flumeng.control.queries import history
from flumeng.control.queries.history import AuditRow
from flumeng.platform.errors import ConflictError, FlumengError, NotAllowedError, UserError
from zkschema import paths

OWN = ("csrf", "once", "seen", "revision_seen", "reason")
"""Fields of the form itself; ``seen`` is the digest of the fields that its page has shown."""
LOOKED_AT = 20
SHOWN = 3
AREA_CHARACTERS = 2000


@dataclass(frozen=True)
class Asked:
    """The fields of a form or a link: ``texts`` of the action, and those of the form itself."""

    texts: Mapping[str, str]
    reason: str = ""
    csrf: str = ""
    key: str = ""
    seen: str = ""
    revision: int | None = None


@dataclass
class Shown:
    """The contents of a page. ``problems`` by field; ``refusal``: why it cannot be done, with what
    ``changed`` meanwhile and the ``diff`` of the flow's text. ``used``: the form's key was used for
    another request."""

    rehearsal: Rehearsal | None = None
    command: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""
    used: bool = False
    changed: Sequence[AuditRow] = ()
    diff: str = ""
    status: HTTPStatus = HTTPStatus.OK


async def page(request: Request) -> Response:
    """Show the action, or do it if the form is complete, unchanged and confirmed."""
    texts = await form_of(request) if request.method == "POST" else {}
    return await run_in_threadpool(_answer, request, {**request.query_params, **texts})


def _answer(request: Request, texts: dict[str, str]) -> Response:
    console, viewer = request.app.state.console, request.state.viewer
    action = action_named(request.path_params["name"])
    asked = _asked(action, texts)
    if request.method == "POST" and not hmac.compare_digest(
        viewer.csrf.encode(), asked.csrf.encode()
    ):
        raise NotAllowedError("this form is not of your session: open its page again")
    shown = Shown()
    given: Given = {}
    try:
        own = {"reason": asked.reason} if action.changes else {}
        fields = (*action.fields, *(each for each in action.body_fields if each.name in own))
        given = dict(doing.read_fields(fields, {**asked.texts, **own}, text=True))
    except FieldsError as error:
        if request.method == "POST" or set(error.problems) & asked.texts.keys():
            shown.problems, shown.status = error.problems, HTTPStatus.UNPROCESSABLE_ENTITY
        return _render(request, action, asked, shown)
    given = {name: value for name, value in given.items() if name != "reason"}
    confirmed = request.method == "POST" and asked.key and asked.seen == _digest(given)
    if confirmed and action.changes:
        try:
            return _done(console, viewer, action, given, asked)
        except FlumengError as error:
            _refuse(console, shown, error, given)
    _rehearse(console, viewer, action, given, asked, shown=shown)
    return _render(request, action, asked, shown, _digest(given))


def _asked(action: Action, texts: dict[str, str]) -> Asked:
    own = {name: texts.pop(name, "") for name in OWN}
    if "/" in texts.get("task", ""):
        texts["flow"], _, texts["task"] = texts["task"].partition("/")
    revision = own["revision_seen"]
    return Asked(
        texts={name: text for name, text in texts.items() if name in _names(action)},
        reason=own["reason"],
        key=own["once"],
        csrf=own["csrf"],
        seen=own["seen"],
        revision=int(revision) if revision.isdecimal() and len(revision) < 10 else None,
    )


def _names(action: Action) -> set[str]:
    return {each.name for each in action.fields}


def _digest(given: Given) -> str:
    return requests.digest(*(f"{name}={value}" for name, value in sorted(given.items())))


def _done(console: Console, viewer: Viewer, action: Action, given: Given, asked: Asked) -> Response:
    doing.Change(console, viewer, action, given, asked.reason, asked.revision).do(asked.key)
    names = {name: given[name] for name in ("flow", "node") if name in given}
    query = urlencode({"request": doing.key_digest(viewer, asked.key), **names})
    return RedirectResponse(f"/do/{action.name}/done?{query}", HTTPStatus.SEE_OTHER)


def _rehearse(
    console: Console, viewer: Viewer, action: Action, given: Given, asked: Asked, *, shown: Shown
) -> None:
    revision = None if shown.refusal else asked.revision
    change = doing.Change(console, viewer, action, given, asked.reason, revision)
    try:
        with console.copy.query() as cache:
            # the copy may lag behind a refusal
            shown.rehearsal = change.rehearse(console.store if shown.refusal else cache)
    except PreconditionError as error:  # the link or form is of an older revision
        _refuse(console, shown, error, given)
        _rehearse(console, viewer, action, given, asked, shown=shown)
        return
    except FlumengError as error:
        if not shown.refusal:
            shown.refusal, shown.status = str(error), HTTPStatus(status_of(error))
        return
    shown.command = action.command(
        given, hosts=console.hosts, reason=asked.reason, if_revision=shown.rehearsal.revision
    )


def _refuse(console: Console, shown: Shown, error: FlumengError, given: Given) -> None:
    shown.refusal, shown.status = str(error), HTTPStatus(status_of(error))
    shown.used = isinstance(error, OtherBodyError)
    if not isinstance(error, ConflictError):
        return
    names = {str(given[name]) for name in ("flow", "node") if name in given}
    rows = history.audit(console.store, LOOKED_AT)
    own = [row for row in rows if names & set(row.command.replace(",", " ").split())]
    shown.changed = own[-SHOWN:]
    if isinstance(error, PreconditionError) and error.revision:
        shown.status = HTTPStatus.PRECONDITION_FAILED
        try:
            shown.diff = history.difference(
                console.store, error.flow, error.expected, error.revision
            ).diff
        except UserError:  # one of the two is not kept
            shown.diff = ""


@dataclass(frozen=True)
class Control:
    """How a form shows a field. ``kind``: hidden, check, area, number or text."""

    field: Field
    kind: str
    text: str
    problem: str


def _controls(action: Action, asked: Asked, shown: Shown, console: Console) -> list[Control]:
    controls = []
    for each in action.fields:
        text = asked.texts.get(each.name, "")
        if action.name == "flow-apply" and each.name == "text" and "text" not in asked.texts:
            text = _current_text(console, asked.texts.get("flow", ""))
        problem = shown.problems.get(each.name, "")
        fixed = each.required and text and not problem and "maxLength" not in each.schema
        controls.append(Control(each, "hidden" if fixed else _kind(each), text, problem))
    return controls


def _current_text(console: Console, flow: str) -> str:
    with console.copy.query() as cache:
        known = flow in cache.children(paths.flows())
        return history.current_text(cache, flow) if known else ""


def _kind(each: Field) -> str:
    kind = each.schema.get("type")
    if kind == "boolean":
        return "check"
    if kind == "integer":
        return "number"
    return "area" if each.schema.get("maxLength", 0) > AREA_CHARACTERS else "text"


def _render(
    request: Request, action: Action, asked: Asked, shown: Shown, seen: str = ""
) -> Response:
    console = request.app.state.console
    viewer = request.state.viewer
    rehearsal = shown.rehearsal
    subject = "/".join(asked.texts[name] for name in action.names if name in asked.texts)
    return rendering.page(
        request,
        "do.html",
        shown.status,
        action=action,
        subject=subject,
        controls=_controls(action, asked, shown, console),
        reason=asked.reason,
        shown=shown,
        rehearsal=rehearsal,
        ready=rehearsal is not None and action.changes,
        seen=seen if rehearsal else "",
        revision=rehearsal.revision if rehearsal and rehearsal.revision is not None else "",
        key=asked.key if asked.key and not shown.used else secrets.token_urlsafe(18),
        csrf=viewer.csrf,
        may=not action.changes or viewer.may_change(action.flow(asked.texts)),
        back=action.back(asked.texts),
    )


def done(request: Request) -> Response:
    """Show the result of a request by the digest of its key, as the audit has it."""
    console = request.app.state.console
    action = action_named(request.path_params["name"])
    found = requests.done_with(
        console.store, request.query_params.get("request", ""), console.clock()
    )
    if found is None:
        raise UserError("the audit has no such request: look at the page that you came from")
    answer = found.answer.get("answer") if isinstance(found.answer, dict) else None
    rows = _rows(answer) if isinstance(answer, dict) else []
    return rendering.page(
        request,
        "done.html",
        action=action,
        done=found,
        rows=rows,
        back=action.back(request.query_params),
    )


def _rows(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the members of an answer that are worth a line."""
    return [
        (name.replace("_", " "), _word(value))
        for name, value in answer.items()
        if not isinstance(value, Mapping | list) and value not in (None, "")
    ]


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


ROUTES = [Route("/do/{name}", page, methods=["GET", "POST"]), Route("/do/{name}/done", done)]
