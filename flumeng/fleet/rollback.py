"""Plans a rollback: which push is undone, and what that changes in each site."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flumeng.fleet import plan as plans
from flumeng.fleet import planning, site_state, undo
from flumeng.fleet.comparison import DriftPolicy
from flumeng.fleet.inventory import Inventory
from flumeng.fleet.plan import PushPlan, SitePlan
from flumeng.fleet.planning import Connect
from flumeng.fleet.site_copy import SiteCopy
from flumeng.platform.errors import FlumengError, UserError
from zkschema.records import PushEntry, PushSource


@dataclass(frozen=True)
class Rollback:
    """``undoes``: the undone push, or the one to go back to. ``begun``: the id of an unfinished
    rollback that is continued, or empty."""

    undoes: str
    begun: str
    plan: PushPlan


@dataclass(frozen=True)
class _History:
    copy: SiteCopy
    entries: list[PushEntry]

    @property
    def newest(self) -> PushSource | None:
        return self.entries[-1].source if self.entries else None


def plan_rollback(
    inventory: Inventory,
    connect: Connect,
    *,
    to: str = "",
    only: Collection[str] = (),
    policy: DriftPolicy = "refuse",
) -> Rollback:
    """Restore each site to right after push ``to``, or to before the newest push of any site; sites
    without that push stay as they are. An unfinished rollback is continued. Raises ``UserError``
    when there is nothing to undo, and for an unknown ``to``."""
    sites = planning.chosen(inventory, only)
    found = planning.look(
        sites,
        connect,
        lambda _site, store, copy: _History(copy, undo.read_entries(store, copy)),
    )
    histories = [one for one in found.values() if isinstance(one, _History)]
    if to:
        _expect_known(to, histories)
    undone = () if to else _to_undo(histories)
    planned: dict[str, SitePlan | FlumengError] = {}
    for name, one in found.items():
        planned[name] = (
            _of_site(name, one, to, undone, policy) if isinstance(one, _History) else one
        )
    plan = PushPlan(inventory.name, "", "", True, policy, planning.said(planned))
    return Rollback(to or undone[-1], undone[0] if len(undone) > 1 else "", plan)


def _of_site(
    name: str, history: _History, to: str, undone: Sequence[str], policy: DriftPolicy
) -> SitePlan:
    entries = history.entries
    try:
        are_all = len(entries) == site_state.push_of(history.copy).next_entry
        taken = (
            undo.after_push(entries, to, are_all=are_all) if to else undo.of_pushes(entries, undone)
        )
        undo.expect_readable(history.copy, entries, taken)
        return plans.plan_undo(name, taken, history.copy, policy=policy)
    except FlumengError as error:
        return SitePlan(name, error=str(error))


def _expect_known(to: str, histories: Sequence[_History]) -> None:
    known = sorted({entry.source.push for one in histories for entry in one.entries})
    if to not in known:
        there = f"they know: {', '.join(known)}" if known else "they know none"
        raise UserError(f"push {to} is in the history of none of these sites; {there}")


def _to_undo(histories: Sequence[_History]) -> tuple[str, ...]:
    """The newest push, and when that is a rollback, the push that it undoes: so a killed rollback
    is continued, and a finished one is not undone."""
    sources = [one.newest for one in histories if one.newest is not None]
    if not sources:
        raise UserError(
            "there is nothing to roll back: these sites know of no push (`flumeng push history`)"
        )
    newest = max(sources, key=lambda source: source.push)
    if newest.returns_to:
        raise UserError(
            f"push {newest.push} went back to {newest.returns_to}: say with --to where to go from "
            "there, or bring the inventory with `flumeng push apply`"
        )
    return (newest.push, newest.undoes) if newest.undoes else (newest.push,)
