"""Failovers that are under way, at both sites: their flows, missing events, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flumeng.control.commands import site_failover
from flumeng.control.commands.site_failover import Plan
from flumeng.control.queries import timestamps
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.cursors import CursorRow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Versioned
from zkschema import paths
from zkschema.records import Failover

NAMED = 3


def paused(cache: ReadCache) -> dict[str, str]:
    """Return the flows that wait for a failback, with the site that they read."""
    return {flow: site for site, failover in _under_way(cache).items() for flow in failover.paused}


def causes(cache: ReadCache, leases: Sequence[CursorRow], now: float) -> Iterator[Cause]:
    """Yield a cause for each failover from another site, and to one. ``now``: epoch seconds."""
    for site, failover in _under_way(cache).items():
        plan = site_failover.plan(cache, site, "failover", now)
        flows = [f"paused {_named(failover.paused)}"] if failover.paused else []
        flows += [f"started {_named(failover.started)}"] if failover.started else []
        yield Cause(
            f"failover from site {site} since {_utc(failover.since)}, by {failover.who}: "
            f"{' and '.join(flows) or 'no flow was running'}; {_missing(plan, now)}",
            _next(plan),
            about=f"failover from site {site}",
        )
    by_site: dict[str, list[CursorRow]] = {}
    for row in leases:
        if row.failover:
            by_site.setdefault(row.site, []).append(row)
    for site, rows in sorted(by_site.items()):
        kept = [row.lag for row in rows]
        events = "an unknown number of" if None in kept else str(sum(filter(None, kept)))
        since = _utc(min(row.failover for row in rows))
        yield Cause(
            f"site {site} has taken over from here since {since}: it has paused "
            f"{_named([row.reads_as for row in rows])}, for which {events} unread events are kept",
            f"let the senders stay at {site} until `flumeng site failback` there has led back",
            about=f"failover to site {site}",
        )


def _under_way(cache: ReadCache) -> Mapping[str, Failover]:
    names = sorted(cache.children(paths.sites()))
    records = cache.read_each([paths.site(name) for name in names])
    return {
        name: record.value.failover
        for name, record in zip(names, records, strict=True)
        if isinstance(record, Versioned) and record.value.failover is not None
    }


def _missing(plan: Plan, now: float) -> str:
    if plan.silent_seconds is None:
        return "the site has never answered, so how many events are missing here is unknown"
    more = " at least" if plan.unlisted else ""
    answered = _utc(now - plan.silent_seconds)
    return f"{plan.missing} events{more} were not acked here at its last answer, {answered}"


def _next(plan: Plan) -> str:
    site = plan.site
    if plan.changed:
        states = ", ".join(f"{flow.flow} is {flow.before}" for flow in plan.changed[:NAMED])
        return (
            f"the command was interrupted, or an operator has changed flows since ({states}): "
            f"repeat `flumeng site failover {site}` or `flumeng site failback {site}`"
        )
    if plan.is_there:
        return f"the site answers again: `flumeng site failback {site}`, then move the senders back"
    return f"start the gateways of {site}, then `flumeng site failback {site}`"


def _named(flows: Sequence[str]) -> str:
    more = len(flows) - NAMED
    return ", ".join(flows[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _utc(seconds: float) -> str:
    return f"{timestamps.utc(seconds)} UTC"
