"""All nodes, by zone, and one node."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.console.pages import journals, rendering
from flumeng.console.pages.listing import PAGE_ROWS, Keys, damaged_in, listing
from flumeng.console.pages.silence import silent
from flumeng.console.pictures import Picture
from flumeng.control.commands.lookup import require_node
from flumeng.control.commands.nodes import Left, left
from flumeng.control.queries.node_processes import processes
from flumeng.control.queries.overview import NodeRow, nodes
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Found, Unreadable, Versioned
from flumeng.platform.errors import UnavailableError
from zkschema import paths
from zkschema.records import LiveNode, Story


def words(row: NodeRow) -> list[str]:
    live = "live" if row.live else "down"
    labels = [f"{key}={value}" for key, value in row.labels.items()]
    return [row.node, row.zone, live, row.desired, row.version, *row.roles, *labels]


def is_unwell(row: NodeRow) -> bool:
    return bool(row.problem or row.problems or (not row.live and row.desired == "active"))


KEYS: Keys[NodeRow] = {
    "zone": lambda row: (row.zone, row.node),
    "problems": lambda row: (not is_unwell(row), row.live, row.zone, row.node),
    "name": lambda row: row.node,
    "tasks": lambda row: (-len(row.tasks), row.node),
}


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    picture = console.pictures.look()
    return rendering.page(
        request,
        "nodes.html",
        list=listing(request, picture.nodes, words=words, keys=KEYS),
        damaged=damaged_in(picture, paths.node, paths.live_node, paths.status, paths.assignment),
        silent=silent(picture),
        is_unwell=is_unwell,
        live=sum(row.live for row in picture.nodes),
    )


def one(request: Request) -> Response:
    console: Console = request.app.state.console
    picture = console.pictures.look()
    name = request.path_params["node"]
    facts = console.shared.answer(("node", name), lambda: _facts(console, picture, name))
    log, live = facts.log, facts.live
    lines = log.value.lines if isinstance(log, Versioned) else ()
    return rendering.page(
        request,
        "node.html",
        shown=PAGE_ROWS,
        is_unwell=journals.is_unwell,
        node=facts.row,
        live=live,
        processes=processes(live, lines, picture.accounts) if live else (),
        lines=lines[::-1],
        log_problem=str(log) if isinstance(log, Unreadable | UnavailableError) else "",
        left=facts.left,
        causes=[cause for cause in picture.status["causes"] if is_about(cause["what"], name)],
        silent=name in silent(picture),
        tasks=[task for flow in picture.flows for task in flow.tasks if task.node == name],
        standbys=[task for flow in picture.flows for task in flow.tasks if name in task.standbys],
        journals=[journal for journal in journals.journal_rows(console) if name == journal.node],
        replicas=[
            journal
            for journal in journals.journal_rows(console)
            if name in journal.replicas and name != journal.node
        ],
    )


@dataclass(frozen=True)
class Facts:
    """The records of a node in ZooKeeper. ``live``: None without a readable record. ``left``: None
    for a node that may get work. ``log``: the error while ZooKeeper is away."""

    row: NodeRow
    live: LiveNode | None
    left: Left | None
    log: Found[Story] | UnavailableError


def _facts(console: Console, picture: Picture, name: str) -> Facts:
    with console.copy.query() as cache:
        row = _row(cache, picture, name)
        return Facts(
            row=row,
            live=live.value if (live := cache.read(paths.live_node(name))) else None,
            left=left(cache, name) if row.desired != "active" else None,
            log=_event_log(cache, name),
        )


def _row(cache: ReadCache, picture: Picture, name: str) -> NodeRow:
    """Return the node's row. Raises UserError for an unknown node."""
    row = next((row for row in picture.nodes if row.node == name), None)
    if row is None:
        require_node(cache, name)
        row = next(row for row in nodes(cache) if row.node == name)
    return row


def _event_log(cache: ReadCache, name: str) -> Found[Story] | UnavailableError:
    try:
        return cache.read_each([paths.story(name)])[0]
    except UnavailableError as error:
        return error


def is_about(sentence: str, node: str) -> bool:
    """Return whether a cause's sentence names the node, as a word or in a path."""
    return node in re.split(r"[\s:,;()/]+", sentence)


ROUTES = [Route("/nodes", page), Route("/nodes/{node}", one)]
