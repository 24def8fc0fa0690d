"""``flumeng flow explain``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.context import CliContext, Name
from cli.flow_try import quiet_end
from cli.options import json_option, optional_zk_option
from cli.output import count, show_json
from flumeng.config import parse_flow, parts_of
from flumeng.config.flow_files import read_flows
from flumeng.control.queries import overview
from flumeng.platform.errors import UserError

if TYPE_CHECKING:
    from flumeng.agent.dryrun.explanation import Columns, Crossing, ExplainedStage, Explanation

WIDTH = 100
MARGIN = 8
ENGINES = {
    "arrow": "a Python function over Arrow batches, in Spark's Python workers",
    "spark": "Spark SQL (Catalyst), in the JVM",
    "writer": "Spark's own writer, in the JVM",
    "function": "a function of yours, in the driver, with a DataFrame",
    "unknown": "only Spark knows where this runs, and the columns from here on",
}
EVENTS = {"cases": "events of the flow's cases", "generated": "generated events"}
JAVA_ADDS = "Java adds the parts marked ?, and with --extended costs and Spark's plans."
THERE_AND_BACK = "into Arrow and back: to count, mark or pick events, or drop hidden columns"
SHOWN = {"unknown": "?", "": ""}


@click.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW|FILE")
@click.option(
    "--extended",
    is_flag=True,
    help="Measure each crossing between Arrow and the JVM; print Spark's plans.",
)
@json_option
@optional_zk_option
def explain(*, hosts: str | None, flow: str, extended: bool, as_json: bool) -> None:
    """Explain where each step of a flow runs, and the guarantee of each sink.

    A name with a dot or a slash is a flow file, and needs no cluster. --extended measures with the
    events of the cases beside it, else with generated ones.
    """
    text = text_of(hosts, flow)
    from flumeng.agent.dryrun.explanation import case_events, explain_flow  # noqa: PLC0415  loads pyspark
    from flumeng.agent.dryrun.local_spark import LocalSpark  # noqa: PLC0415  loads pyarrow
    from flumeng.agent.dryrun.planned import with_java  # noqa: PLC0415  loads pyspark
    from flumeng.agent.dryrun.users_code import calls_users_code  # noqa: PLC0415  loads pyarrow

    specs = [parse_flow(text), *map(parse_flow, parts_of(text).values())]
    events = case_events(Path(flow)) if extended and is_file(flow) else ()
    spark = LocalSpark(partial(click.echo, err=True), users_code=calls_users_code(specs[0]))
    with quiet_end(spark):
        whole, *parts = [
            explain_flow(spec, with_java(spark), extended=extended, events=events) for spec in specs
        ]
        whole = replace(whole, parts=tuple(parts))
    if as_json:
        show_json(whole)
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        click.echo("\n".join(lines_of(whole, min(WIDTH, columns))))


def is_file(flow: str) -> bool:
    return bool(set(flow) & set("./"))


def text_of(hosts: str | None, flow: str) -> str:
    """Return the text of a flow file, or of the current revision of a flow in the cluster."""
    if is_file(flow):
        return read_flows([Path(flow)])[0].text
    if hosts is None:
        raise UserError(f"name the cluster of flow {flow} with --zk or FLUMENG_ZK, or name a file")
    with click.get_current_context().ensure_object(CliContext).store(hosts) as store:
        return overview.flow(store, flow).text


def lines_of(explained: Explanation, width: int) -> Iterator[str]:
    yield (
        f"flow {explained.flow}: delivery {explained.delivery}, durability {explained.durability}, "
        f"a batch within {explained.batch_seconds:g} s"
    )
    yield ""
    before: dict[int, Columns] = {}
    last = ""
    for stage in explained.stages:
        for crossing in stage.crossings:
            yield from _crossing(crossing, before.get(stage.depth, {}), stage.depth, width)
        label = SHOWN.get(stage.engine, stage.engine)
        if stage.engine == "arrow":
            label = "" if stage.function is None else f"{label} {stage.function}"
        margin = "" if label == last and not stage.crossings else label
        last = label
        yield from _stage(stage, before.get(stage.depth, {}), margin, width)
        if stage.kind == "branch":
            before[stage.depth + 1] = before[stage.depth]
        elif stage.kind in ("read", "filter") and stage.columns is not None:
            before[stage.depth] = stage.columns
    yield ""
    for engine in dict.fromkeys(stage.engine for stage in explained.stages if stage.engine):
        yield f"{SHOWN.get(engine, engine):{MARGIN}} {ENGINES[engine]}"
    pairs = (pair for stage in explained.stages for pair in pairwise(stage.crossings))
    if any(into.direction == "to-arrow" and out.direction == "to-jvm" for into, out in pairs):
        yield f"{'=' * MARGIN} {THERE_AND_BACK}"
    if explained.missing:
        missing = f"Without Java not all is known: {explained.missing}. {JAVA_ADDS}"
        yield from ("", *textwrap.wrap(missing, width, break_on_hyphens=False))
    for sinks, plan in explained.spark_plans.items():
        yield f"\nSpark's plan for {sinks}:\n{plan}"
    for part in explained.parts:
        yield "\nIsolated: tasks of its own read the same events again.\n"
        yield from lines_of(part, width)


def _stage(stage: ExplainedStage, before: Columns, margin: str, width: int) -> Iterator[str]:
    rail = " " if stage.function is None else "|"
    kind = "source " if stage.kind == "source" else ""
    if stage.kind in ("filter", "sink"):
        kind = stage.place.rpartition("].")[0].rpartition(".")[2] + "]."
    show = partial(_wrapped, rail=rail, width=width)
    yield from show(f"{kind}{stage.text}", margin, stage.depth)
    if stage.promise is not None:
        way = f", {stage.promise.way}" if stage.promise.way else ""
        times = stage.promise.times.replace("-", " ")
        yield from show(f"{times}{way}: {stage.promise.why}", "", stage.depth + 1)
    for note in stage.notes:
        yield from show(note, "", stage.depth + 1)
    if stage.kind in ("read", "filter") and stage.columns is not None:
        for change in _changes(before, stage.columns):
            yield from show(change, "", stage.depth + 1)


def _crossing(crossing: Crossing, given: Columns, depth: int, width: int) -> Iterator[str]:
    way = "Arrow -> JVM" if crossing.direction == "to-jvm" else "JVM -> Arrow"
    times = f", {crossing.times} times" if crossing.times > 1 else ""
    shared = ", kept there for all outputs below" if crossing.shared else ""
    which = count(len(crossing.columns), "column")
    if crossing.columns.keys() == given.keys():
        which = f"all {which}"
    else:
        which = f"{which} ({', '.join(crossing.columns)})"
    yield from _wrapped(f"{way}{times}{shared}: {which}", "=" * MARGIN, depth, width, "=")
    if (cost := crossing.cost) is not None:
        measured = f"{cost.rows_per_second:,} rows/s, {cost.micros_a_row:g} us a row"
        yield from _wrapped(
            f"measured: {measured}, {EVENTS[cost.events]}", "", depth + 1, width, "="
        )


def _changes(before: Columns, after: Columns) -> Iterator[str]:
    """Yield the columns that a stage adds, removes and changes; all when few of them stay."""
    kept = [name for name in before if name in after]
    if 2 * len(kept) < max(1, len(before)) or not before:
        yield f"columns {_listed(after, after)}"
        return
    if added := [name for name in after if name not in before]:
        yield f"+ {_listed(added, after)}"
    if gone := [name for name in before if name not in after]:
        yield f"- {', '.join(gone)}"
    if other := [name for name in kept if before[name] != after[name]]:
        yield f"now {_listed(other, after)}"


def _listed(names: Iterable[str], columns: Columns) -> str:
    return ", ".join(f"{name} {columns[name]}" for name in names)


def _wrapped(text: str, margin: str, depth: int, width: int, rail: str) -> Iterator[str]:
    inner = "  " * depth
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=f"{margin:{MARGIN}}{rail} {inner}",
        subsequent_indent=f"{'':{MARGIN}}{rail} {inner}  ",
        break_on_hyphens=False,
    )
