"""The screen of ``flumeng top``, rendered by pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cli.output import count, make_table
from cli.status import link_tables, state_cells
from flumeng.control.queries.causes import grouped
from flumeng.control.queries.flow_rates import UNKNOWN, FlowRates
from flumeng.control.queries.lag import LagOfFlow
from flumeng.control.queries.links import sentence
from flumeng.control.queries.overview import NodeRow
from flumeng.control.queries.task_status import TaskRow

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 20
HELP = "q quit · ↑↓ select · enter details · s sort · r reverse"
HELP_OF_FLOW = "q quit · esc back"
SORTS: dict[str, Callable[[dict[str, Any], FlowRates], Any]] = {
    "lag": lambda flow, _rates: -flow["lag"],
    "flow": lambda flow, _rates: flow["flow"],
    "in": lambda _flow, rates: -(rates.incoming or 0.0),
    "out": lambda _flow, rates: -(rates.delivered or 0.0),
    "dropped": lambda _flow, rates: -(rates.dropped or 0.0),
    "dead letters": lambda _flow, rates: -(rates.dead_letters or 0.0),
}
FLOW_HEADERS = (
    "FLOW", "STATE", "REVISION", "RUNNING", "LAG", "IN/S", "OUT/S", "DROPPED/S", "DEAD/S",
)  # fmt: skip

Table = tuple[Sequence[str], list[Sequence[object]]]


@dataclass(frozen=True)
class Seen:
    """The cluster as last read. ``status``: the dict of ``health.status``; ``details``: tasks and
    lag of the opened flow."""

    status: dict[str, Any]
    nodes: Sequence[NodeRow] = ()
    rates: dict[str, FlowRates] = field(default_factory=dict)
    details: tuple[Sequence[TaskRow], LagOfFlow] | None = None

    def rates_of(self, flow: str) -> FlowRates:
        return self.rates.get(flow, UNKNOWN)


@dataclass(frozen=True)
class View:
    sort: str = "lag"
    reverse: bool = False
    selected: str = ""
    opened: str = ""
    ended: bool = False


def flows_in_order(seen: Seen, view: View) -> list[dict[str, Any]]:
    by = SORTS[view.sort]
    flows = sorted(seen.status["flows"], key=lambda flow: by(flow, seen.rates_of(flow["flow"])))
    return flows[::-1] if view.reverse else flows


def pressed(view: View, key: str, seen: Seen) -> View:
    if key == "q":
        return replace(view, ended=True)
    if view.opened:
        return replace(view, opened="") if key in ("escape", "backspace") else view
    if key == "r":
        return replace(view, reverse=not view.reverse)
    if key == "s":
        names = list(SORTS)
        following = names[(names.index(view.sort) + 1) % len(names)]
        return replace(view, sort=following, reverse=False)
    names = [flow["flow"] for flow in flows_in_order(seen, view)]
    index = names.index(view.selected) if view.selected in names else -1
    if key in ("down", "j") and names:
        return replace(view, selected=names[min(index + 1, len(names) - 1)])
    if key in ("up", "k") and names:
        return replace(view, selected=names[max(index - 1, 0)])
    if key == "enter" and index >= 0:
        return replace(view, opened=view.selected)
    return view


def headline(status: dict[str, Any]) -> str:
    masters, nodes = len(status["masters"]), status["nodes"]
    return (
        f"{status['health']}: {count(masters, 'master')}, {nodes['live']} of "
        f"{nodes['registered']} nodes live, {count(len(status['causes']), 'problem')}"
    )


def tables(seen: Seen, view: View) -> Iterator[Table]:
    """Yield the tables: problems, flows as ``view`` sorts them, links, leases and nodes, the worst
    first; empty ones of problems, links and leases are left out."""
    causes = seen.status["causes"]
    if causes:
        yield ("PROBLEM", "ADVICE"), [*grouped(causes)]
    yield FLOW_HEADERS, [_flow(flow, seen) for flow in flows_in_order(seen, view)]
    yield from link_tables(seen.status)
    yield (
        ("NODE", "LIVE", "DESIRED", "TASKS", "NOT RUNNING"),
        [
            (
                row.node,
                row.live,
                row.desired,
                len(row.tasks),
                sum(state != "running" for state in row.tasks.values()),
            )
            for row in sorted(seen.nodes, key=_how_well)
        ],
    )


def picture(seen: Seen, view: View, lines: int) -> Group:
    """Render a screen of ``lines`` lines, with as many rows of each table as fit."""
    from rich.console import Group  # noqa: PLC0415  loads rich
    from rich.text import Text  # noqa: PLC0415  loads rich

    if view.opened:
        return Group(*_of_flow(seen, view.opened, lines))
    shown = list(tables(seen, view))
    rows = max(3, lines // max(4, len(shown) + 1))
    order = f"by {view.sort}{', reversed' if view.reverse else ''}"
    parts: list[RenderableType] = [Text(f"{headline(seen.status)} · {order}")]
    for headers, table_rows in shown:
        if headers is FLOW_HEADERS:
            parts.append(_selectable(seen, view, table_rows, rows))
        else:
            parts.append(make_table(headers, table_rows[:rows]))
        if len(table_rows) > rows:
            parts.append(Text(f"and {len(table_rows) - rows} more"))
    parts.append(Text(HELP))
    return Group(*parts)


def _selectable(seen: Seen, view: View, flows: list[Sequence[object]], rows: int) -> RenderableType:
    names = [str(row[0]) for row in flows]
    chosen = names.index(view.selected) if view.selected in names else -1
    first = max(0, chosen - rows + 1)
    shown = [
        (f"{'>' if number == chosen else ' '} {row[0]}", *row[1:], spark(seen, names[number]))
        for number, row in enumerate(flows)
    ]
    return make_table((*FLOW_HEADERS, "OUT, RECENT"), shown[first : first + rows])


def spark(seen: Seen, flow: str) -> str:
    history = seen.rates_of(flow).history[-SPARKS:]
    most = max(history, default=0.0)
    if not most:
        return BARS[0] * len(history)
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in history)


def _flow(flow: dict[str, Any], seen: Seen) -> Sequence[object]:
    rates = seen.rates_of(flow["flow"])
    return (
        *state_cells(flow),
        _rate(rates.incoming),
        _rate(rates.delivered),
        _rate(rates.dropped),
        _rate(rates.dead_letters),
    )


def _of_flow(seen: Seen, name: str, lines: int) -> Iterator[RenderableType]:
    from rich.text import Text  # noqa: PLC0415  loads rich

    flow = next((flow for flow in seen.status["flows"] if flow["flow"] == name), None)
    if flow is None or seen.details is None:
        yield Text(f"flow {name}: there is nothing to show yet\n{HELP_OF_FLOW}")
        return
    tasks, lag = seen.details
    rows = max(3, lines // 4)
    yield Text(f"flow {name} · {spark(seen, name)}")
    yield make_table(FLOW_HEADERS[1:], [_flow(flow, seen)[1:]])
    if lag.link is not None:
        yield Text(sentence(lag.link))
    site = lag.link.site if lag.link else ""
    causes = [c for c in seen.status["causes"] if f"{name}/" in c["about"] or _names(c, name, site)]
    if causes:
        yield make_table(("PROBLEM", "ADVICE"), grouped(causes))
    worst = sorted(tasks, key=lambda task: task.state == "running")
    yield make_table(
        ("TASK", "NODE", "EPOCH", "STATE", "WHY"),
        [(task.task, task.node, task.epoch, task.state, task.why) for task in worst[:rows]],
    )
    partitions = [(part.flow, row) for part in (lag, *lag.parts) for row in part.partitions]
    yield make_table(
        ("PARTITION", "OF", "ACK", "END", "BEHIND", "SECONDS"),
        [
            (row.partition, part, row.ack, row.end, row.events, row.seconds)
            for part, row in partitions[:rows]
        ],
    )
    more = max(0, len(tasks) - rows) + max(0, len(partitions) - rows)
    yield Text(f"and {more} more: `flumeng flow lag {name}`\n" * bool(more) + HELP_OF_FLOW)


def _names(cause: dict[str, str], flow: str, site: str) -> bool:
    """Whether the cause is about the flow, its leases, or its link to ``site``."""
    starts = (f"flow {flow}:", f"link {flow}:", f"lease {flow}@", f"link to site {site}:")
    return cause["about"] == f"flow {flow}" or cause["about"].startswith(starts)


def _rate(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _how_well(row: NodeRow) -> tuple[bool, int]:
    return row.live, -sum(state != "running" for state in row.tasks.values())
