"""Plans pushes and rollbacks of many sites, and adopts resources that were created by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from flumeng.control.zookeeper import Store
from flumeng.fleet import plan as plans
from flumeng.fleet import rollback, site_state, writes
from flumeng.fleet.claim import HasEnded, why_refused
from flumeng.fleet.comparison import Change, DriftPolicy
from flumeng.fleet.inventory import Inventory, Site
from flumeng.fleet.parallel_sites import in_sites
from flumeng.fleet.plan import PushPlan, SitePlan
from flumeng.fleet.resources import FLOW, Resources, digest, kind_of
from flumeng.fleet.site_copy import SiteCopy, copy_site
from flumeng.fleet.waves import Wave
from flumeng.platform.errors import ConflictError, FlumengError, UserError
from flumeng.platform.options.problems import nearest
from zkschema.records import PushClaim, PushEntry, PushSource

R = TypeVar("R")

ID_TIME = "%Y%m%dT%H%M%S"
Connect = Callable[[Site], Store]


def chosen(inventory: Inventory, only: Collection[str]) -> list[Site]:
    """Return the sites with these names, groups or labels (``tier=one``), or all. Raises
    ``UserError`` for unknown names."""
    names: set[str] = set()
    known_names = {name for site in inventory.sites.values() for name in _names(site)}
    for name in only:
        if name not in known_names:
            raise UserError(
                f'there is no site, group or label "{name}"; {nearest(name, sorted(known_names))}'
            )
        names |= {site.name for site in inventory.sites.values() if name in _names(site)}
    return [site for site in inventory.sites.values() if not only or site.name in names]


def _names(site: Site) -> tuple[str, ...]:
    labels = (f"{key}={value}" for key, value in site.labels.items())
    return (site.name, *site.groups, *labels)


def waves_of(inventory: Inventory, sites: Iterable[str]) -> tuple[Wave, ...]:
    names = set(sites)
    waves = (
        replace(wave, sites=tuple(name for name in wave.sites if name in names))
        for wave in inventory.waves
    )
    return tuple(wave for wave in waves if wave.sites)


def read_sites(
    sites: Iterable[Site], connect: Connect, work: Callable[[Site, Store, SiteCopy], R]
) -> dict[str, R | FlumengError]:
    """Run ``work`` on a copy of each site; return each site's result or error."""

    def read_site(site: Site) -> R:
        with closing(connect(site)) as store:
            return work(site, store, copy_site(store))

    return in_sites(sites, read_site)


def plan_push(
    inventory: Inventory,
    rendered: Mapping[str, Resources],
    connect: Connect,
    *,
    only: Collection[str] = (),
    prune: bool = False,
    policy: DriftPolicy = "refuse",
) -> PushPlan:
    """Plan to bring the sites to the inventory. Raises ``UserError`` for unknown names."""
    sites = chosen(inventory, only)
    results = read_sites(
        sites,
        connect,
        lambda site, _store, copy: plans.plan_site(
            site.name, rendered[site.name], copy, prune=prune, policy=policy
        ),
    )
    return PushPlan(
        inventory.name, inventory.digest, inventory.revision, prune, policy, as_plans(results)
    )


def source_of(plan: PushPlan, *, who: str, reason: str, now: float, suffix: str) -> PushSource:
    """Return the source of a new push. Ids sort by time: if the clock is slow, the id's time is one
    second after that of the newest push."""
    pushes = (site.push.source.push for site in plan.sites.values() if site.push.source)
    later = [moment + 1 for moment in map(_time_of, pushes) if moment is not None]
    moment = datetime.fromtimestamp(max([now, *later]), UTC)
    return PushSource(
        push=f"{moment.strftime(ID_TIME)}-{suffix}",
        inventory=plan.inventory,
        digest=plan.digest,
        revision=plan.revision,
        author=who,
        reason=reason,
        time=now,
        sites=tuple(name for name, site in plan.sites.items() if site.has_work or site.error),
    )


def _time_of(push: str) -> float | None:
    with suppress(ValueError):
        moment = datetime.strptime(push.partition("-")[0], ID_TIME).replace(tzinfo=UTC)
        return moment.timestamp()
    return None


def begun(plan: PushPlan) -> PushSource | None:
    """Return the unfinished push of the same content, to be continued; None without one."""
    sources = {
        source.push: source
        for site in plan.sites.values()
        if (source := site.push.source) is not None
        and (source.inventory, source.digest) == (plan.inventory, plan.digest)
    }
    newest = sources[max(sources)] if sources else None
    if newest is None or not any(_lacks(plan.sites.get(name), newest) for name in newest.sites):
        return None
    return newest


def _lacks(site: SitePlan | None, source: PushSource) -> bool:
    if site is None:
        return False
    last = site.push.source.push if site.push.source else ""
    return last < source.push or (last == source.push and bool(site.unproven))


def as_plans(results: Mapping[str, SitePlan | FlumengError]) -> dict[str, SitePlan]:
    return {
        name: result if isinstance(result, SitePlan) else SitePlan(name, error=str(result))
        for name, result in results.items()
    }


def adopt(
    store: Store, keys: Collection[str], source: PushSource, claim: PushClaim, has_ended: HasEnded
) -> list[str]:
    """Adopt ``keys`` (drifted ones too), or all flows that no push made; return the adopted keys.
    Raises ``UserError`` for an unknown key, ``ConflictError`` during another push."""
    adopted: list[str] = []
    while True:
        copy = copy_site(store)
        changes = _changes(copy, keys)
        if not changes:
            return adopted
        push = site_state.push_of(copy)
        why = why_refused(push, claim, has_ended, take_over=False)
        if why:
            raise ConflictError(why)
        part = writes.first_part(copy, changes, push, source, "adopt")
        transaction = writes.transaction(copy, part, push, source, "adopt")
        store.commit(transaction)
        adopted += [change.key for change in part]


def _changes(copy: SiteCopy, keys: Collection[str]) -> list[Change]:
    why = site_state.why_not_pushed(copy)
    if why:
        raise UserError(why)
    state = site_state.state_of(copy)
    unknown = [key for key in keys if key not in state.resources]
    if unknown:
        raise UserError(f'no resource "{unknown[0]}"; {nearest(unknown[0], state.resources)}')
    chosen = keys or [
        key for key in state.resources if kind_of(key) == FLOW and key not in state.owned
    ]
    return [
        Change(key, "take", value, value, state.owned.get(key), digest(value))
        for key in chosen
        for value in [state.resources[key]]
        if state.owned.get(key) != digest(value)
    ]


@dataclass(frozen=True)
class Rollback:
    """A planned rollback. ``undoes``: the undone push, or the one to return to. ``begun``: id of
    the continued rollback, or empty."""

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
    """Plan to restore each site to right after push ``to``, or to before the newest push; sites
    without that push stay unchanged. An unfinished rollback is continued. Raises ``UserError`` when
    there is nothing to undo, and for an unknown ``to``."""
    sites = chosen(inventory, only)
    results = read_sites(
        sites,
        connect,
        lambda _site, store, copy: _History(copy, rollback.read_entries(store, copy)),
    )
    histories = [result for result in results.values() if isinstance(result, _History)]
    if to:
        _expect_known(to, histories)
    undone = () if to else _to_undo(histories)
    planned: dict[str, SitePlan | FlumengError] = {}
    for name, result in results.items():
        planned[name] = (
            _of_site(name, result, to, undone, policy) if isinstance(result, _History) else result
        )
    plan = PushPlan(inventory.name, "", "", True, policy, as_plans(planned))
    return Rollback(to or undone[-1], undone[0] if len(undone) > 1 else "", plan)


def _of_site(
    name: str, history: _History, to: str, undone: Sequence[str], policy: DriftPolicy
) -> SitePlan:
    entries = history.entries
    try:
        are_all = len(entries) == site_state.push_of(history.copy).next_entry
        if to:
            taken = rollback.after_push(entries, to, are_all=are_all)
        else:
            taken = rollback.of_pushes(entries, undone)
        rollback.expect_readable(history.copy, entries, taken)
        return plans.plan_undo(name, taken, history.copy, policy=policy)
    except FlumengError as error:
        return SitePlan(name, error=str(error))


def _expect_known(to: str, histories: Sequence[_History]) -> None:
    pushes = sorted({entry.source.push for history in histories for entry in history.entries})
    if to not in pushes:
        history = f"they have: {', '.join(pushes)}" if pushes else "they have no pushes"
        raise UserError(f"none of these sites has push {to} in its history; {history}")


def _to_undo(histories: Sequence[_History]) -> tuple[str, ...]:
    """Return the newest push and, when that is a rollback, the push that it undoes: so a killed
    rollback is continued, and a finished one is not undone."""
    sources = [history.newest for history in histories if history.newest is not None]
    if not sources:
        raise UserError(
            "there is nothing to roll back: these sites have no pushes (`flumeng push history`)"
        )
    newest = max(sources, key=lambda source: source.push)
    if newest.returns_to:
        raise UserError(
            f"push {newest.push} returned to {newest.returns_to}: name the push to return to with "
            "--to, or apply the inventory with `flumeng push apply`"
        )
    return (newest.push, newest.undoes) if newest.undoes else (newest.push,)
