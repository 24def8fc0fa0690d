"""``flumeng push``: brings many sites to one inventory, in waves, and back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

import click

from cli.context import CliContext
from cli.lazy import CommandGroup
from cli.options import json_option, reason_option
from cli.output import show_json
from cli.push_output import show_outcome, show_plan
from cli.push_progress import carry_out, claim_of
from cli.push_sites import adopt, drift, export, history, status
from cli.sites import find_site, with_inventory
from flumeng.fleet import plan as plans
from flumeng.fleet import planning
from flumeng.fleet.comparison import DriftPolicy
from flumeng.fleet.execution import Manner
from flumeng.fleet.inventory import Inventory
from flumeng.fleet.inventory.rendering import render as render_all
from flumeng.fleet.plan import PushPlan
from flumeng.fleet.waves import Ending, Outcome, Wave
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options import windows

if TYPE_CHECKING:
    from zkschema.records import PushSource

only_option = click.option(
    "--only",
    multiple=True,
    metavar="SITE|GROUP|LABEL=VALUE",
    help="Only these sites; may be given several times.",
)
prune_option = click.option(
    "--prune", is_flag=True, help="Delete pushed resources that are no longer in the inventory."
)
drift_option = click.option(
    "--drift",
    "policy",
    type=click.Choice(["refuse", "keep", "overwrite"]),
    default="refuse",
    show_default=True,
    help="The treatment of resources that were changed by hand since the last push.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask before it begins.")
take_over_option = click.option(
    "--take-over", is_flag=True, help="Take over the push of another process that is gone."
)


@click.group(cls=CommandGroup)
def push() -> None:
    """Bring many sites to one inventory, in waves, and back again."""


for command in (adopt, drift, export, history, status):
    push.add_command(command)


@push.command()
@click.argument("site", metavar="SITE")
@with_inventory
@json_option
def render(_context: CliContext, inventory: Inventory, site: str, as_json: bool) -> None:
    """Show the desired content of a site: its flows, as applied, and all other resources."""
    find_site(inventory, site)
    resources = render_all(inventory)[site]
    if as_json:
        show_json(dict(resources))
        return
    for key, value in resources.items():
        if key.startswith("flow/"):
            click.echo(f"--- # {key}\n{value.rstrip()}\n")
        else:
            click.echo(f"--- # {key}\n{value}\n")


@push.command()
@with_inventory
@only_option
@prune_option
@drift_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Save the plan: `push apply --plan FILE` does just this, or fails if sites have changed.",
)
@json_option
def plan(
    context: CliContext,
    inventory: Inventory,
    *,
    only: tuple[str, ...],
    prune: bool,
    policy: DriftPolicy,
    out: Path | None,
    as_json: bool,
) -> None:
    """Show the changes that a push would make in each site; nothing is changed.

    Exit codes: 0 nothing to do, 1 a site cannot be read, 2 wrong input, 3 drift or conflict, 5
    there are changes.
    """
    made = _plan(context, inventory, only, prune=prune, policy=policy)
    if out is not None:
        _keep(out, made)
    if as_json:
        show_json(plans.to_json(made))
    else:
        show_plan(made)
    raise SystemExit(made.exit_code)


@push.command()
@with_inventory
@only_option
@prune_option
@drift_option
@click.option(
    "--plan",
    "kept",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Carry out just this plan.",
)
@click.option(
    "--on-failure",
    type=click.Choice(["stop", "rollback"]),
    default="stop",
    show_default=True,
    help="After a failed wave: leave the sites as they are, or roll them back.",
)
@click.option("--wait-for-windows", is_flag=True, help="Wait for the windows of sites to open.")
@yes_option
@take_over_option
@reason_option
@json_option
def apply(
    context: CliContext,
    inventory: Inventory,
    *,
    only: tuple[str, ...],
    prune: bool,
    policy: DriftPolicy,
    kept: Path | None,
    on_failure: Literal["stop", "rollback"],
    wait_for_windows: bool,
    yes: bool,
    take_over: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Bring the sites to the inventory, wave by wave.

    Each site must run its new content, and be no worse than before, before the next wave begins.
    The same command resumes an interrupted push. Exit codes: 0 done, 1 failed or not finished, 2
    wrong input, 3 drift, conflict, or another push is under way.
    """
    if kept is not None:
        if only or prune or policy != "refuse":
            raise UserError("--only, --prune and --drift are in the plan: give them to `push plan`")
        made = _as_kept(context, inventory, kept)
    else:
        made = _plan(context, inventory, only, prune=prune, policy=policy)
    _refuse_conflicts(made)
    if made.exit_code == plans.NOTHING:
        _end(Outcome(Ending.DONE, skipped=tuple(made.sites)), as_json=as_json)
        return
    source = _source(context, made, reason)
    begun = planning.begun(made)
    source = replace(source, push=begun.push, sites=begun.sites) if begun else source
    waves = planning.waves_of(inventory, made.sites)
    _ask(made, f"Push {source.push} in {len(waves)} wave(s)?", yes=yes, as_json=as_json)
    manner = Manner(
        "apply",
        source,
        _source(context, replace(made, digest="", revision=""), reason, undoes=source.push),
        claim_of(context, source.push),
        on_failure=on_failure,
        take_over=take_over,
        wait_for_windows=wait_for_windows,
    )
    outcome = carry_out(context, inventory, made, waves, manner)
    _end(outcome, as_json=as_json, opens=_openings(context, inventory, outcome))


@push.command(name="rollback")
@with_inventory
@only_option
@click.option(
    "--to",
    default="",
    metavar="PUSH",
    help="Return to the content right after this push. Default: right before the newest one.",
)
@drift_option
@yes_option
@take_over_option
@reason_option
@json_option
def rollback_(
    context: CliContext,
    inventory: Inventory,
    *,
    only: tuple[str, ...],
    to: str,
    policy: DriftPolicy,
    yes: bool,
    take_over: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Restore the content of sites from before the newest push, or right after an earlier one.

    All sites at once, also after an incomplete push. Repeat the command after an interruption.
    """
    back = planning.plan_rollback(inventory, context.open_site, to=to, only=only, policy=policy)
    made = back.plan
    _refuse_conflicts(made)
    if not any(site.has_work for site in made.sites.values()):
        errors = {name: site.error for name, site in made.sites.items() if site.error}
        ending = Ending.FAILED if errors else Ending.DONE
        done = tuple(name for name in made.sites if name not in errors)
        _end(Outcome(ending, skipped=done, failed=errors), as_json=as_json)
        return
    source = _source(context, made, reason)
    source = replace(source, undoes="" if to else back.undoes, returns_to=to)
    source = replace(source, push=back.begun) if back.begun else source
    question = f"Go back to push {to}?" if to else f"Undo push {back.undoes}?"
    _ask(made, question, yes=yes, as_json=as_json)
    settle = max(wave.settle_seconds for wave in inventory.waves)
    sites = tuple(made.sites)
    wave = Wave("rollback", sites, parallel=0, max_failures=len(sites), settle_seconds=settle)
    claim = claim_of(context, source.push)
    manner = Manner("rollback", source, source, claim, take_over=take_over)
    _end(carry_out(context, inventory, made, (wave,), manner), as_json=as_json)


def _plan(
    context: CliContext,
    inventory: Inventory,
    only: tuple[str, ...],
    *,
    prune: bool,
    policy: DriftPolicy,
) -> PushPlan:
    return planning.plan_push(
        inventory, render_all(inventory), context.open_site, only=only, prune=prune, policy=policy
    )


def _keep(path: Path, made: PushPlan) -> None:
    """Write a plan to a file for its owner only: texts of flows may be confidential."""
    try:
        path.touch(mode=0o600)
        if path.is_file():  # it may have been there, and open to others
            path.chmod(0o600)
        path.write_text(json.dumps(plans.to_json(made)))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def _as_kept(context: CliContext, inventory: Inventory, path: Path) -> PushPlan:
    """Plan a kept plan again and return the result. Raises ``ConflictError`` when they differ."""
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    kept = plans.from_json(document)
    plans.expect_same_inventory(kept, inventory)
    now = _plan(context, inventory, tuple(kept.sites), prune=kept.prune, policy=kept.policy)
    moved = plans.moved_since(kept, now)
    if moved:
        raise ConflictError("\n".join(["the plan is outdated:", *moved]))
    return now


def _refuse_conflicts(made: PushPlan) -> None:
    conflicts = [
        f"site {name}: {key}: {why}"
        for name, site in made.sites.items()
        for key, why in site.comparison.conflicts.items()
    ]
    if conflicts:
        advice = "`flumeng push plan` shows all; --drift sets the treatment of drift"
        raise ConflictError("\n".join([*conflicts, advice]))


def _source(context: CliContext, made: PushPlan, reason: str, undoes: str = "") -> PushSource:
    source = planning.source_of(
        made, who=context.who(), reason=reason, now=context.clock(), suffix=uuid.uuid4().hex[:6]
    )
    return replace(source, undoes=undoes)


def _ask(made: PushPlan, question: str, *, yes: bool, as_json: bool) -> None:
    if not as_json:
        show_plan(made)
    if not yes:
        click.confirm(question, abort=True, err=as_json)


def _openings(context: CliContext, inventory: Inventory, outcome: Outcome) -> dict[str, str]:
    """Return when the window of each waiting site opens, in the site's time zone; "" if never."""
    moment = datetime.fromtimestamp(context.clock(), UTC)
    opens, opening_times = {}, dict[tuple[str, str], datetime | None]()
    for name in outcome.shut:
        zone = ZoneInfo(inventory.sites[name].time_zone)
        wave = next(wave for wave in inventory.waves if name in wave.sites)
        if (wave.name, zone.key) not in opening_times:
            opening_times[wave.name, zone.key] = windows.opens_at(wave.windows, moment, zone)
        first = opening_times[wave.name, zone.key]
        opens[name] = f"opens {first:%Y-%m-%d %H:%M} ({zone})" if first else ""
    return opens


def _end(outcome: Outcome, *, as_json: bool, opens: Mapping[str, str] | None = None) -> None:
    if as_json:
        show_json(asdict(outcome))
    else:
        show_outcome(outcome, opens or {})
    if outcome.ending != Ending.DONE:
        raise SystemExit(1)
