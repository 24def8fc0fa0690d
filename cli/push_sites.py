"""``flumeng push status``, ``drift``, ``history``, ``adopt`` and ``export``."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from cli.context import CliContext
from cli.options import json_option, reason_option
from cli.output import count, show_json, show_table, warn
from cli.push_output import show_plan
from cli.push_progress import claim_of
from cli.sites import find_site, with_inventory
from flumeng.control.queries import health, timestamps
from flumeng.fleet import plan as plans
from flumeng.fleet import planning, rollback
from flumeng.fleet.comparison import Comparison
from flumeng.fleet.inventory import Inventory, Site
from flumeng.fleet.inventory.export import export as export_files
from flumeng.fleet.inventory.files import read_inventory
from flumeng.fleet.inventory.rendering import render as render_all
from flumeng.fleet.inventory.sites_file import check_connect_string
from flumeng.fleet.plan import PushPlan
from flumeng.fleet.site_copy import SiteCopy
from flumeng.fleet.site_state import SiteState, state_of, why_not_pushed
from flumeng.fleet.site_status import DEGRADED, FlowCell, SiteStatus, site_status
from flumeng.fleet.site_status import history as history_rows
from flumeng.platform import processes
from flumeng.platform.errors import FlumengError, UserError
from flumeng.platform.options.patterns import check_name

WIDE_SITES = 12
"""The most sites that have columns of their own."""


@click.command()
@with_inventory
@json_option
def status(context: CliContext, inventory: Inventory, as_json: bool) -> None:
    """Show the state of each site: its push, health, lag and drift, and each flow.

    Exit code 1 if a site is degraded, unreachable, unproven, or differs from the inventory.
    """
    rendered = render_all(inventory)
    statuses = planning.read_sites(
        inventory.sites.values(),
        context.open_site,
        lambda site, _store, copy: site_status(
            site.name,
            rendered[site.name],
            copy,
            health.status(copy, context.accounts, context.counters, context.clock()),
            processes.has_ended,
        ),
    )
    rows = [
        SiteStatus(name, str(status)) if isinstance(status, FlumengError) else status
        for name, status in statuses.items()
    ]
    if as_json:
        show_json([asdict(row) for row in rows])
    else:
        waves = {name: wave.name for wave in inventory.waves for name in wave.sites}
        _show_sites(rows, waves)
        _show_flows(rows)
        _show_links(rows)
    if any(row.error or row.unproven or row.behind or row.health == DEGRADED for row in rows):
        raise SystemExit(1)


def _show_sites(rows: Sequence[SiteStatus], waves: Mapping[str, str]) -> None:
    show_table(
        ("SITE", "WAVE", "PUSH", "CONTENT", "IN SYNC", "DRIFT", "HEALTH", "LAG", "VERSIONS"),
        (
            (row.site, waves[row.site], f"cannot be read: {row.error}", *[""] * 6)
            if row.error
            else (
                row.site,
                waves[row.site],
                row.push,
                row.revision or row.digest[:12],
                "yes" if not row.behind else f"no: {row.behind} differ",
                len(row.drift) or "",
                row.health,
                row.lag or "",
                row.versions,
            )
            for row in rows
        ),
    )
    for row in rows:
        notes = [row.unproven] if row.unproven else []
        notes += [f"{row.pushed_by} pushes now"] if row.pushed_by else []
        notes += [f"{key} was changed by hand" for key in row.drift]
        for line in (*notes, *row.causes):
            click.echo(f"- site {row.site}: {line}")


def _show_flows(rows: Sequence[SiteStatus]) -> None:
    sites = [row for row in rows if not row.error]
    names = sorted({name for row in sites for name in row.flows})
    if len(sites) <= WIDE_SITES:
        table = [(name, *(_cell(row.flows.get(name)) for row in sites)) for name in names]
        show_table(("FLOW", *(row.site for row in sites)), table)
        return
    odd = [
        (name, row.site, _cell(cell))
        for name in names
        for row in sites
        if (cell := row.flows.get(name)) is not None and (cell.marks or cell.state != "running")
    ]
    show_table(("FLOW", "SITE", "REVISION"), odd)
    click.echo(
        f"{count(len(names), 'flow')} in {count(len(sites), 'site')}; all others are in sync"
    )


def _show_links(rows: Sequence[SiteStatus]) -> None:
    """Show which site reads which, if any does; with many sites only links that are not up."""
    read = sorted({there for row in rows for there in row.links})
    if not read:
        return
    if len(read) <= WIDE_SITES:
        show_table(
            ("READS FROM", *read),
            (
                (row.site, *(_link_cell(row.links.get(there, {})) for there in read))
                for row in rows
                if row.links
            ),
        )
        return
    odd = [
        (row.site, there, flow, state)
        for row in rows
        for there, flows in sorted(row.links.items())
        for flow, state in sorted(flows.items())
        if state != "up"
    ]
    show_table(("SITE", "READS FROM", "FLOW", "LINK"), odd)


def _link_cell(states: Mapping[str, str]) -> str:
    """Return ``3 up``, or ``2 up, 1 down``."""
    numbers = Counter(states.values())
    return ", ".join(f"{numbers[state]} {state}" for state in sorted(numbers, key=_worst_last))


def _worst_last(state: str) -> tuple[bool, str]:
    return state != "up", state


def _cell(cell: FlowCell | None) -> str:
    """Return ``3``, ``3 (drift, suspended)`` or ``absent (differs)``; empty for no such flow."""
    if cell is None:
        return ""
    marks = [*cell.marks, *([cell.state] if cell.state not in ("", "running") else [])]
    revision = "absent" if cell.revision is None else str(cell.revision)
    return f"{revision} ({', '.join(marks)})" if marks else revision


@click.command()
@with_inventory
@json_option
def drift(context: CliContext, inventory: Inventory, as_json: bool) -> None:
    """Show changes made by hand in the sites since the last push.

    Exit code 3 when there is anything, 1 when a site cannot be read.
    """
    made = planning.plan_push(inventory, render_all(inventory), context.open_site)
    drifted = {
        name: plans.SitePlan(name, Comparison(drift=site.comparison.drift), error=site.error)
        for name, site in made.sites.items()
        if site.comparison.drift or site.error
    }
    if as_json:
        show_json(
            {
                name: {"error": site.error, "drift": [asdict(d) for d in site.comparison.drift]}
                for name, site in drifted.items()
            }
        )
    elif drifted:
        show_plan(PushPlan(made.inventory, made.digest, made.revision, False, "refuse", drifted))
    else:
        click.echo(f"nothing was changed by hand in {count(len(made.sites), 'site')}")
    if any(site.error for site in drifted.values()):
        raise SystemExit(plans.FAILED)
    if drifted:
        raise SystemExit(plans.CONFLICT)


@click.command()
@click.argument("site", required=False, metavar="[SITE]")
@with_inventory
@json_option
def history(context: CliContext, inventory: Inventory, site: str | None, as_json: bool) -> None:
    """List the recorded pushes of all sites, or of one, with author, content and reason."""
    sites = [find_site(inventory, site)] if site else list(inventory.sites.values())
    histories = planning.read_sites(
        sites, context.open_site, lambda _site, store, copy: rollback.read_history(store, copy)
    )
    kept = {name: h for name, h in histories.items() if not isinstance(h, FlumengError)}
    rows = history_rows({name: entries for name, (entries, _) in kept.items()})
    if as_json:
        show_json(rows)
    else:
        show_table(
            ("PUSH", "WHAT", "TIME (UTC)", "AUTHOR", "CONTENT", "SITES", "CHANGES", "REASON"),
            (
                (
                    row.push,
                    f"{row.verb} {row.undoes}".strip(),
                    timestamps.utc(row.time),
                    row.author,
                    row.revision or row.digest[:12],
                    row.sites if len(row.sites) <= WIDE_SITES else len(row.sites),
                    row.changes,
                    row.reason,
                )
                for row in rows
            ),
        )
    damaged = {name: why for name, (_, why) in kept.items() if why}
    for name, why in damaged.items():
        warn(f"site {name}: older pushes cannot be read: {why}")
    _tell_silent(histories)
    if damaged:
        raise SystemExit(plans.FAILED)


@click.command()
@click.argument("site", metavar="SITE")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@with_inventory
@reason_option
def adopt(
    context: CliContext, inventory: Inventory, site: str, keys: tuple[str, ...], reason: str
) -> None:
    """Let pushes manage resources that were made by hand, as they are.

    A KEY is as in a plan (flow/web, setting/grace_seconds). Default: all flows that no push made.
    """
    target = find_site(inventory, site)
    empty = PushPlan(inventory.name, "", "", False, "refuse", {})
    source = planning.source_of(
        empty, who=context.who(), reason=reason, now=context.clock(), suffix=uuid.uuid4().hex[:6]
    )
    with closing(context.open_site(target)) as store:
        claim = claim_of(context, source.push)
        adopted = planning.adopt(store, keys, source, claim, processes.has_ended)
    for key in adopted:
        click.echo(f"site {site}: {key} is managed by pushes now")
    if not adopted:
        click.echo(f"site {site}: nothing to adopt")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    required=True,
    metavar="SITE=HOST:PORT/CHROOT",
    help="A running site, with the name that it gets; may be given several times.",
)
@click.option("--name", default="sites", show_default=True, help="The inventory's name.")
@click.pass_context
def export(here: click.Context, directory: Path, clusters: tuple[str, ...], name: str) -> None:
    """Make an inventory of running sites: their common part becomes its base."""
    context = here.ensure_object(CliContext)
    if directory.exists() and any(directory.iterdir()):
        raise UserError(f"{directory} is not empty: an export makes a new inventory")
    zookeepers = dict(_named(cluster) for cluster in clusters)
    sites = [Site(site, hosts) for site, hosts in zookeepers.items()]
    results = planning.read_sites(
        sites, context.open_site, lambda _site, _store, copy: _state(copy)
    )
    states: dict[str, SiteState] = {}
    for site, result in results.items():
        if isinstance(result, FlumengError):
            raise type(result)(f"site {site}: {result}") from result
        states[site] = result
    resources = {site: state.resources for site, state in states.items()}
    for path, text in export_files(resources, name, zookeepers).items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
        click.echo(str(file))
    _check_export(directory, states)
    click.echo(f"review {directory / 'sites.yaml'}, then run `flumeng push plan`")


def _named(cluster: str) -> tuple[str, str]:
    name, equals, hosts = cluster.partition("=")
    if not equals:
        raise UserError(f"{cluster!r} is not SITE=HOST:PORT/CHROOT")
    try:
        check_name(name)
        check_connect_string(hosts)
    except ValueError as error:
        raise UserError(f"{cluster}: {error}") from error
    return name, hosts


def _state(copy: SiteCopy) -> SiteState:
    why = why_not_pushed(copy)
    if why:
        raise UserError(why)
    return state_of(copy)


def _check_export(directory: Path, states: Mapping[str, SiteState]) -> None:
    rendered = render_all(read_inventory(directory))
    left = [
        f"site {site}: {key} is left out: {why}"
        for site, state in states.items()
        for key, why in state.unreadable.items()
    ]
    left += [
        f"site {site}: {key} cannot be expressed in an inventory"
        for site, state in states.items()
        for key in sorted({*state.resources, *rendered[site]})
        if state.resources.get(key) != rendered[site].get(key)
    ]
    for line in left:
        warn(line)
    if left:
        raise SystemExit(1)


def _tell_silent(results: Mapping[str, object]) -> None:
    silent = {name: result for name, result in results.items() if isinstance(result, FlumengError)}
    for name, error in silent.items():
        warn(f"site {name} cannot be read: {error}")
    if silent:
        raise SystemExit(4)
