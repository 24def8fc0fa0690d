"""Compares each site with the inventory: its last push, drift and health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flumeng.fleet import plan as plans
from flumeng.fleet.claim import HasEnded
from flumeng.fleet.comparison import compare
from flumeng.fleet.resources import FLOW, Resources
from flumeng.fleet.site_copy import SiteCopy
from flumeng.fleet.site_state import push_of, state_of, why_not_pushed
from zkschema import paths
from zkschema.records import PushEntry

OK, DEGRADED = "ok", "degraded"


@dataclass(frozen=True)
class FlowCell:
    """A flow in a site. ``revision``: None for an absent flow; ``marks``: ``differs``, ``drift``,
    ``foreign`` (not owned)."""

    revision: int | None
    state: str
    lag: int
    marks: tuple[str, ...]


@dataclass(frozen=True)
class SiteStatus:
    """A site's status. ``behind``: how many resources differ. ``error``: why the rest is empty.
    ``links``: the states of its links, by the site that they read and the flow that reads."""

    site: str
    error: str = ""
    push: str = ""
    digest: str = ""
    revision: str = ""
    time: float = 0.0
    author: str = ""
    unproven: str = ""
    pushed_by: str = ""
    behind: int = 0
    drift: tuple[str, ...] = ()
    health: str = ""
    causes: tuple[str, ...] = ()
    lag: int = 0
    versions: tuple[str, ...] = ()
    flows: Mapping[str, FlowCell] = field(default_factory=dict)
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def site_status(
    site: str, desired: Resources, copy: SiteCopy, health: Mapping[str, Any], has_ended: HasEnded
) -> SiteStatus:
    """Return the status of a site; ``health`` is the result of ``health.status``."""
    why = why_not_pushed(copy)
    if why:
        return SiteStatus(site, why)
    push, state = push_of(copy), state_of(copy)
    comparison = compare(desired, state, prune=True, policy="keep")
    drift = {drifted.key for drifted in comparison.drift}
    behind = {*drift, *comparison.conflicts, *(change.key for change in comparison.changes)}
    rows = {row["flow"]: row for row in health["flows"]}
    names = {key.partition("/")[2] for key in desired if key.startswith(f"{FLOW}/")} | rows.keys()
    live = [paths.live_node(name) for name in copy.children(paths.live_nodes())]
    versions = {node.value.version for node in copy.read_many(live) if node}
    source, claim = push.source, push.claim
    pushes = claim is not None and not has_ended(claim.boot, claim.pid)  # else it is stale
    return SiteStatus(
        site,
        push=source.push if source else "",
        digest=source.digest if source else "",
        revision=source.revision if source else "",
        time=source.time if source else 0.0,
        author=source.author if source else "",
        unproven=plans.unproven(push),
        pushed_by=claim.who if claim and pushes else "",
        behind=len(behind),
        drift=tuple(sorted(drift)),
        health=health["health"],
        causes=tuple(cause["what"] for cause in health["causes"]),
        lag=sum(row["lag"] for row in rows.values()),
        versions=tuple(sorted(versions)),
        flows={
            name: _cell(f"{FLOW}/{name}", rows.get(name), state.owned, behind, drift)
            for name in sorted(names)
        },
        links=_links(health["links"]),
    )


def _links(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    links: dict[str, dict[str, str]] = {}
    for row in rows:
        links.setdefault(row["site"], {})[row["flow"]] = row["state"]
    return links


def _cell(
    key: str,
    row: Mapping[str, Any] | None,
    owned: Mapping[str, str],
    behind: set[str],
    drift: set[str],
) -> FlowCell:
    marks = [
        *(["drift"] if key in drift else ["differs"] if key in behind else []),
        *(["foreign"] if row is not None and key not in owned else []),
    ]
    if row is None:
        return FlowCell(None, "", 0, tuple(marks))
    return FlowCell(row["revision"], row["state"], row["lag"], tuple(marks))


@dataclass(frozen=True)
class PushRow:
    """One push, summed over all sites that keep an entry of it."""

    push: str
    verb: str
    time: float
    author: str
    inventory: str
    digest: str
    revision: str
    undoes: str
    sites: tuple[str, ...]
    changes: int
    reason: str


def history(entries: Mapping[str, Sequence[PushEntry]]) -> list[PushRow]:
    """Return the pushes of which sites keep ``entries``, oldest first."""
    sites: dict[str, list[str]] = {}
    changes: dict[str, int] = {}
    newest: dict[str, PushEntry] = {}
    for site, own in entries.items():
        for entry in own:
            push = entry.source.push
            newest[push] = entry
            changes[push] = changes.get(push, 0) + len(entry.changes)
            if site not in sites.setdefault(push, []):
                sites[push].append(site)
    return [
        PushRow(
            push,
            entry.verb,
            entry.source.time,
            entry.source.author,
            entry.source.inventory,
            entry.source.digest,
            entry.source.revision,
            entry.source.undoes or entry.source.returns_to,
            tuple(sites[push]),
            changes[push],
            entry.source.reason,
        )
        for push, entry in sorted(newest.items(), key=_moment)
    ]


def _moment(row: tuple[str, PushEntry]) -> tuple[str, bool, str]:
    """Return a key that sorts by time; a push and its undoing may be of the same second."""
    push, entry = row
    return push.partition("-")[0], bool(entry.source.undoes), push
