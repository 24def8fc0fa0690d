"""Output of plans and outcomes of pushes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

import click

from cli.output import count, show_table
from flumeng.fleet.comparison import Change, Drift
from flumeng.fleet.plan import PushPlan, SitePlan
from flumeng.fleet.waves import Ending, Outcome

SIGNS = {"make": "+", "change": "~", "delete": "-", "take": "=", "confirm": "=", "forget": "/"}
MEANINGS = {
    "take": "already has the desired value; pushes manage it from now on",
    "confirm": "already rolled back to the desired value; its failed rollout is settled",
    "forget": "pushes no longer manage it",
}
ENDINGS = {
    Ending.DONE: "is done",
    Ending.DONE_WITH_FAILURES: "is done, with failures",
    Ending.FAILED: "has failed",
    Ending.ROLLED_BACK: "was rolled back",
    Ending.STOPPED: "was stopped",
    Ending.WAITING: "waits for a window",
}
MOST_MOVES = 20
MOST_NAMES = 20


def show_plan(plan: PushPlan) -> None:
    alike: dict[tuple[str, ...], list[str]] = {}
    for site in plan.sites.values():
        alike.setdefault(tuple(_site_lines(site)), []).append(site.site)
    for lines, names in alike.items():
        if lines:
            click.echo("\n".join([_title(names), *lines]))
    sites = plan.sites.values()
    changes = [change for site in sites for change in site.comparison.changes]
    counts = [
        f"{sum(change.verb == verb for change in changes)} to {verb}"
        for verb in ("make", "change", "delete", "take", "confirm", "forget")
        if any(change.verb == verb for change in changes)
    ]
    left = sum(len(site.comparison.left) for site in sites)
    drift = sum(len(site.comparison.drift) for site in sites)
    errors = sum(bool(site.error) for site in sites)
    totals = [
        ", ".join(counts) or "nothing to change",
        f"{sum(site.comparison.unchanged for site in sites)} unchanged",
        *([f"{left} would be deleted with --prune"] if left else []),
        *([f"{drift} changed by hand"] if drift else []),
        *([f"{count(errors, 'site')} cannot be pushed to"] if errors else []),
    ]
    click.echo(f"{count(len(plan.sites), 'site')}: {'; '.join(totals)}")


def _title(names: Sequence[str]) -> str:
    """Return a heading: ``site dub:``, or ``sites dub, fra, nyc (3):`` for equal plans."""
    if len(names) == 1:
        return f"site {names[0]}:"
    more = ", ..." if len(names) > MOST_NAMES else ""
    return f"sites {', '.join(names[:MOST_NAMES])}{more} ({len(names)}):"


def _site_lines(site: SitePlan) -> Iterator[str]:
    comparison = site.comparison
    if site.error:
        yield f"  ! cannot be pushed to: {site.error}"
        return
    content = (comparison.drift, comparison.conflicts, comparison.waiting, comparison.left)
    if not (site.has_work or any(content)):
        return
    if site.unproven:
        yield f"  ! {site.unproven}"
    for change in comparison.changes:
        yield from _change_lines(change)
    for flow, why in site.recomposed.items():
        yield f"  ~ flow/{flow}: its text is unchanged, its composed text changes: {why}"
    for drift in comparison.drift:
        yield from _drift_lines(drift)
    for key, why in comparison.conflicts.items():
        yield f"  ! {key}: {why}"
    for key, why in comparison.waiting.items():
        yield f"  . {key}: waits: {why}"
    for key in comparison.left:
        yield f"  . {key}: is no longer in the inventory; --prune deletes it"
    for move in site.moves[:MOST_MOVES]:
        yield f"  > task {move.task}: {move.what}" + _way(move.before, move.after)
    if len(site.moves) > MOST_MOVES:
        yield f"  > and {len(site.moves) - MOST_MOVES} more tasks"


def _way(before: str | None, after: str | None) -> str:
    if before == after:
        return f" on {after}" if after else ""
    return f" ({before or 'nowhere'} -> {after or 'nowhere'})"


def _change_lines(change: Change) -> Iterator[str]:
    sign = SIGNS[change.verb]
    if change.verb in MEANINGS:
        yield f"  {sign} {change.key}: {MEANINGS[change.verb]}"
        return
    yield from _differences(sign, change.key, change.before, change.after)


def _drift_lines(drift: Drift) -> Iterator[str]:
    change = "was removed by hand" if drift.there is None else "was changed by hand"
    yield f"  ! {drift.key}: {change}; desired -> actual:"
    yield from _differences("!", drift.key, drift.wanted, drift.there)


def _differences(sign: str, key: str, before: str | None, after: str | None) -> Iterator[str]:
    old, new = (before or "").splitlines(), (after or "").splitlines()
    if len(old) <= 1 and len(new) <= 1:
        was, is_ = (
            before if before is not None else "unset",
            after if after is not None else "unset",
        )
        yield f"  {sign} {key}: {was} -> {is_}"
        return
    yield f"  {sign} {key}"
    for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]:
        yield f"      {line}"


def show_outcome(outcome: Outcome, opens: Mapping[str, str]) -> None:
    """Show the outcome of each site; ``opens`` tells when shut windows open."""
    rows = [
        *((name, "done", "") for name in outcome.done),
        *((name, "nothing to do", "") for name in outcome.skipped),
        *((name, "failed", why) for name, why in outcome.failed.items()),
        *((name, "reverted", "") for name in outcome.reverted),
        *((name, "not reverted", why) for name, why in outcome.not_reverted.items()),
        *((name, "its window is shut", opens[name]) for name in outcome.shut),
        *((name, "not begun", "") for name in outcome.never_begun if name not in outcome.shut),
    ]
    show_table(("SITE", "OUTCOME", "WHY"), rows)
    where = f" in wave {outcome.wave}" if outcome.wave else ""
    click.echo(
        "done" if outcome.ending == Ending.DONE else f"the push {how(outcome.ending)}{where}"
    )
    if outcome.ending in (Ending.FAILED, Ending.STOPPED, Ending.WAITING):
        click.echo("the same command resumes it; `flumeng push rollback` undoes it")


def how(ending: Ending) -> str:
    return ENDINGS[ending]
