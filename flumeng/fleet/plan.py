"""The plan of a push in each site, and whether it still holds when it is applied. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

import msgspec

from flumeng.control.commands import preview
from flumeng.control.commands.preview import Move
from flumeng.control.zookeeper import Expected
from flumeng.fleet import rollback, site_state, writes
from flumeng.fleet.comparison import Change, Comparison, DriftPolicy, compare, restore
from flumeng.fleet.inventory import Inventory
from flumeng.fleet.resources import FLOW, Resources, kind_of, name_of
from flumeng.fleet.site_copy import Shape, SiteCopy
from flumeng.platform.errors import ConflictError, FlumengError, UserError
from zkschema import paths, records
from zkschema.records import PushEntry

FORMAT = 1
NOTHING, FAILED, CONFLICT, CHANGES = 0, 1, 3, 5
"""Exit codes of a plan; 2 is wrong input."""


@dataclass(frozen=True)
class Seen:
    """The version of ``/push``, and the paths of the site's znodes for a faster next read."""

    push_version: Expected
    shape: Shape


@dataclass(frozen=True)
class SitePlan:
    """A push's plan in a site. ``error``: why there is none. ``recomposed``: why further flows get
    a revision. ``moves``: of tasks, by masters. ``unproven``: why the last push is not done."""

    site: str
    comparison: Comparison = field(default_factory=Comparison)
    recomposed: Mapping[str, str] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    error: str = ""
    unproven: str = ""
    push: records.Push = field(default_factory=records.Push)
    seen: Seen | None = field(default=None, repr=False, compare=False)

    @property
    def has_work(self) -> bool:
        return bool(self.comparison.changes or self.unproven)


@dataclass(frozen=True)
class PushPlan:
    """The plan of a push in all sites; ``digest`` and ``revision`` are those of its inventory."""

    inventory: str
    digest: str
    revision: str
    prune: bool
    policy: DriftPolicy
    sites: Mapping[str, SitePlan]

    @property
    def exit_code(self) -> int:
        sites = self.sites.values()
        if any(site.error for site in sites):
            return FAILED
        refuses = self.policy == "refuse"
        if any(site.comparison.conflicts or (refuses and site.comparison.drift) for site in sites):
            return CONFLICT
        return CHANGES if any(site.has_work for site in sites) else NOTHING


def plan_site(
    site: str, desired: Resources, copy: SiteCopy, *, prune: bool, policy: DriftPolicy
) -> SitePlan:
    why = site_state.why_not_pushed(copy)
    if why:
        return SitePlan(site, error=why)
    comparison = compare(desired, site_state.state_of(copy), prune=prune, policy=policy)
    return with_moves(site, comparison, copy)


def plan_undo(
    site: str, entries: Sequence[PushEntry], copy: SiteCopy, *, policy: DriftPolicy
) -> SitePlan:
    """Return the plan that restores the site to before these entries, which are its newest ones."""
    why = site_state.why_not_pushed(copy)
    if why:
        return SitePlan(site, error=why)
    comparison = restore(rollback.before(entries), site_state.state_of(copy), policy=policy)
    return with_moves(site, comparison, copy)


def with_moves(site: str, comparison: Comparison, copy: SiteCopy) -> SitePlan:
    """Return the site's plan with task moves; an ``error`` if it cannot be carried out now."""
    push = site_state.push_of(copy)
    refused = writes.refused_flows(copy, comparison.changes)
    comparison = replace(
        comparison,
        conflicts={**comparison.conflicts, **refused},
        changes=tuple(change for change in comparison.changes if change.key not in refused),
    )
    seen = Seen(writes.version_of(copy, paths.push()), copy.shape)
    plan = SitePlan(site, comparison, unproven=unproven(push), push=push, seen=seen)
    not_now = site_state.why_not_now(copy)
    if comparison.changes and not_now:
        return replace(plan, error=not_now)
    try:
        recomposed = writes.recomposed_flows(copy, comparison.changes)
        return replace(plan, recomposed=recomposed, moves=_moves(comparison.changes, copy))
    except FlumengError as error:
        return replace(plan, error=f"the moves of tasks cannot be planned: {error}")


def unproven(push: records.Push) -> str:
    """Return why the last push of a site is not done; empty when it is."""
    if push.state == "applied" or push.source is None:
        return ""
    if push.state == "failed":
        return f"push {push.source.push} failed: {push.why}"
    return f"push {push.source.push} was written, but the site was not seen well since"


def moved_since(before: PushPlan, now: PushPlan) -> list[str]:
    """Return the differences of a new plan from the previous one, as one line of text each."""
    lines = []
    for name, old in before.sites.items():
        new = now.sites.get(name)
        if new is None:
            lines.append(f"site {name} no longer exists")
            continue
        if new.error != old.error:
            lines.append(f"site {name}: {new.error or 'it can be reached now'}")
            continue
        was = {change.key: change for change in old.comparison.changes}
        is_ = {change.key: change for change in new.comparison.changes}
        lines += [
            f"site {name}: {key} was changed since the plan was made"
            for key in sorted({*was, *is_})
            if was.get(key) != is_.get(key)
        ]
        lines += [
            f"site {name}: flow {flow} reads other flows than when the plan was made"
            for flow in sorted({*old.recomposed, *new.recomposed})
            if old.recomposed.get(flow) != new.recomposed.get(flow)
        ]
    return lines


def to_json(plan: PushPlan) -> dict[str, Any]:
    """Return the plan in the format of ``push plan --json`` and ``--out``."""
    return {
        "v": FORMAT,
        "inventory": plan.inventory,
        "digest": plan.digest,
        "revision": plan.revision,
        "prune": plan.prune,
        "drift_policy": plan.policy,
        "exit_code": plan.exit_code,
        "sites": {name: _site_json(site) for name, site in plan.sites.items()},
    }


def _site_json(site: SitePlan) -> dict[str, Any]:
    return {
        "error": site.error,
        "unproven": site.unproven,
        **asdict(site.comparison),
        "recomposed": dict(site.recomposed),
        "moves": [asdict(move) for move in site.moves],
    }


def from_json(document: Any) -> PushPlan:
    """Parse a plan. Raises ``UserError`` for anything but the output of ``to_json``."""
    if not isinstance(document, dict) or repr(document.get("v")) != repr(FORMAT):
        raise UserError(
            f"this is no plan of format {FORMAT}: make one with `flumeng push plan --out FILE`"
        )
    try:
        sites = {name: _site_from(name, site) for name, site in document["sites"].items()}
        policy, prune = document["drift_policy"], document["prune"]
        if not sites or policy not in get_args(DriftPolicy) or not isinstance(prune, bool):
            raise ValueError("no sites, drift_policy or prune")
        return PushPlan(
            str(document["inventory"]),
            str(document["digest"]),
            str(document["revision"]),
            prune,
            policy,
            sites,
        )
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
        raise UserError(f"the plan is damaged ({error!r}): recreate it") from error


def _site_from(name: str, site: Mapping[str, Any]) -> SitePlan:
    comparison = msgspec.convert(site, Comparison)
    moves = msgspec.convert(site["moves"], tuple[Move, ...])
    recomposed = site["recomposed"]
    return SitePlan(name, comparison, recomposed, moves, site["error"], site["unproven"])


def expect_same_inventory(plan: PushPlan, inventory: Inventory) -> None:
    """Raise ``ConflictError`` when the plan is of another inventory or other content."""
    if (plan.inventory, plan.digest) != (inventory.name, inventory.digest):
        raise ConflictError(
            f"the plan is of inventory {plan.inventory} {plan.digest}, the directory holds "
            f"{inventory.name} {inventory.digest}: make a new plan"
        )


def _moves(changes: Sequence[Change], copy: SiteCopy) -> tuple[Move, ...]:
    texts = writes.texts_of(changes)
    ended = [
        name_of(change.key)
        for change in changes
        if kind_of(change.key) == FLOW and change.verb == "delete"
    ]
    nodes = writes.nodes_of(copy, changes)
    if not (texts or ended or nodes):
        return ()
    after = writes.with_sites(copy, changes)
    return preview.apply(after, texts, ended=ended, nodes=nodes).moves
