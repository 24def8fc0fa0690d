"""Links between sites, seen from both: those of flows here that read other sites, and the leases of
other sites here. Causes name what happens next, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flumeng.config import SpecError, parse_flow
from flumeng.control.commands import lease_breaks
from flumeng.control.commands.lease_breaks import SHOWN_SECONDS
from flumeng.control.queries import timestamps
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.cursors import HoldingCursor
from flumeng.control.queries.overview import FlowRow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import leases
from flumeng.control.zookeeper import Versioned
from zkschema import paths
from zkschema.records import DISCOVER, NOTHING, Break, Link

SHARES = (0.8, 0.5)
"""Used shares of a lease from which on it is reported, each as a problem of its own."""
DOWN_SECONDS = 30.0
"""A link that is down for a shorter time is not reported, unless a gateway lets calls time out: any
gateway may be restarted."""
FLAPS, FLAP_SECONDS = 3, 600.0
"""A link flaps when it went down this often in this time."""
NAMED = 3
CLOCK_SECONDS = 60.0
"""A larger difference of clocks is reported, as at the reader."""
LINK = "link "


@dataclass(frozen=True)
class LinkRow:
    """The link of ``flow`` to the flow ``source`` of ``site``. ``state``: ``up``, ``down``,
    ``slow``, ``flaps`` or ``unknown`` (discovery has not reached the site yet). ``since``: when it
    went down; ``why``. ``renewed_seconds``: since the lease was renewed, to within a hundredth of
    ``keep_seconds``. ``time`` and ``room``: used shares of the lease; ``events`` and ``bytes`` that
    the site keeps. ``broke``: an unacknowledged break."""

    flow: str
    site: str
    source: str
    state: str
    since: float
    why: str
    keep_seconds: float
    renewed_seconds: float | None
    time: float | None
    room: float
    events: int
    bytes: int
    broke: Break | None
    downs: int


def with_links(
    flows: Sequence[FlowRow], cache: ReadCache, now: float
) -> tuple[list[FlowRow], list[LinkRow]]:
    """Return the flows, and the links of those that read other sites. A discovery task that waits
    for the end of a short break counts as running. ``now``: epoch seconds by clocks here."""
    names = [flow.flow for flow in flows]
    cache.read_each([paths.breaks(name) for name in names])
    rows = links(cache, names, now)
    short = {row.flow: row.why for row in rows if row.since and row.state != "down"}
    return [
        _excused(flow, short[flow.flow]) if flow.flow in short else flow for flow in flows
    ], rows


def _excused(flow: FlowRow, why: str) -> FlowRow:
    tasks = tuple(
        replace(task, state="running", why="", health="")
        if task.kind == DISCOVER and task.why == why
        else task
        for task in flow.tasks
    )
    return replace(flow, tasks=tasks)


def links(cache: ReadCache, flows: Iterable[str], now: float) -> list[LinkRow]:
    """Return the links of these flows. ``now``: epoch seconds, by this site's clocks."""
    names = sorted(flows)
    found = cache.read_each([paths.link(name) for name in names])
    return [
        _row(name, link.value, now)
        for name, link in zip(names, found, strict=True)
        if isinstance(link, Versioned)
    ]


def _row(flow: str, link: Link, now: float) -> LinkRow:
    downs = sum(0 <= now - at < FLAP_SECONDS for at in link.downs)
    if link.down_since and (link.silent or now - link.down_since >= DOWN_SECONDS):
        state = "down"
    elif downs >= FLAPS:
        state = "flaps"
    elif link.answer_seconds:
        state = "slow"
    else:
        state = "up" if link.renewed else "unknown"
    silent = max(0.0, now - link.renewed) if link.renewed else None
    broke = link.broke
    if broke and (broke.id == link.acknowledged or now - broke.time > SHOWN_SECONDS):
        broke = None
    return LinkRow(
        flow=flow,
        site=link.site,
        source=link.source,
        state=state,
        since=link.down_since,
        why=f"its answers take {link.answer_seconds:g} s" if state == "slow" else link.why,
        keep_seconds=link.keep_seconds,
        renewed_seconds=silent,
        time=silent / link.keep_seconds if silent is not None else None,
        room=link.room,
        events=link.events,
        bytes=link.bytes,
        broke=broke,
        downs=downs,
    )


def sentence(row: LinkRow) -> str:
    """Return the state of a link and its lease in one line."""
    state = {"down": "is down", "flaps": "flaps", "slow": "is slow", "up": "is up"}
    since = f" since {_utc(row.since)}" if row.since else ""
    line = f"its link to flow {row.source} of site {row.site} {state.get(row.state, 'is unknown')}"
    if row.renewed_seconds is None or row.time is None:
        return f"{line}{since}: no lease yet"
    return (
        f"{line}{since}; lease renewed within {span(max(row.renewed_seconds, 1))}, "
        f"{row.time:.0%} of {span(row.keep_seconds)} used; the site keeps {row.events} events "
        f"({amount(row.bytes)}), {row.room:.0%} of a journal's room"
    )


def excused(rows: Sequence[LinkRow]) -> set[tuple[str, str]]:
    """Return flows with the errors of their discovery tasks that are reported as those of links."""
    return {(row.flow, row.why) for row in rows if row.since}


def causes_of_links(
    rows: Sequence[LinkRow],
    states: Mapping[str, str],
    now: float,
    failed_over: Mapping[str, str] = NOTHING,
) -> Iterator[Cause]:
    """Yield causes of links that flows here use. ``states``: of the flows. ``failed_over``: flows
    that wait for a failback, with its site."""
    by_fault: dict[tuple[str, str, str], list[LinkRow]] = {}
    for row in rows:
        if row.state in ("down", "slow", "flaps") and states.get(row.flow) == "running":
            by_fault.setdefault((row.site, row.state, row.why), []).append(row)
    for (site, state, why), those in by_fault.items():
        yield _of_fault(site, state, why, those, now)
    for row in rows:
        if states.get(row.flow) in ("running", "suspended"):
            yield from _of_own_lease(row, states[row.flow], failed_over.get(row.flow, ""))
        if row.broke is not None and (row.broke.events or row.broke.at_least):
            lost = lease_breaks.counted(row.broke)
            yield Cause(
                f"flow {row.flow} has lost {lost} of flow {row.source} at site {row.site}, which "
                f"gave them up at {_utc(row.broke.time)}: {row.broke.why}: {_gaps(row.broke)}",
                "the dead letters list each gap; fetch the events from elsewhere if you need them, "
                f"then `flumeng cursor acknowledge {row.flow}`",
                about=f"{LINK}{row.flow}: gap {row.broke.id}",
            )


def _of_fault(site: str, state: str, why: str, rows: Sequence[LinkRow], now: float) -> Cause:
    flows = _named([row.flow for row in rows])
    about = f"{LINK}to site {site}: {state}"
    if state == "down":
        since = min(row.since for row in rows)
        until = min(row.since + row.keep_seconds for row in rows)
        return Cause(
            f"the link to site {site} is down since {_utc(since)} ({span(now - since)}), for flow "
            f"{flows}: {why}",
            f"check these addresses from here, and at {site} `flumeng node list`; the site keeps "
            f"unread events until about {_utc(until)}, or until a journal there is full",
            about=about,
        )
    if state == "flaps":
        downs = max(row.downs for row in rows)
        return Cause(
            f"the link to site {site} flaps, for flow {flows}: it went down at least {downs} times "
            f"in {span(FLAP_SECONDS)}" + (f", last: {why}" if why else ""),
            f"look at the network between the sites, and at the logs of the gateways at {site}; "
            "nothing is lost meanwhile, and each break costs time",
            about=about,
        )
    return Cause(
        f"the link to site {site} is slow, for flow {flows}: {why}",
        f"look at the load of the gateways at {site} (`flumeng_gateway_reads`) and at the network",
        about=about,
    )


def _of_own_lease(row: LinkRow, state: str, failover: str) -> Iterator[Cause]:
    resume = (
        f"`flumeng site failback {failover}`" if failover else f"`flumeng flow resume {row.flow}`"
    )
    lease = f"the lease of flow {row.flow} on flow {row.source} of site {row.site}"
    if (used := row.time) is not None and (reached := _reached(used)) and row.renewed_seconds:
        remedy = (
            resume
            if state == "suspended"
            else "repair the link"
            if row.since
            else "see the discovery task of the flow"
        )
        end = (
            "has ended: the site gives up unread events"
            if used >= 1
            else f"was not renewed for {span(row.renewed_seconds)}, {used:.0%} of its "
            f"{span(row.keep_seconds)}; at 100% the site gives up the events not read by then"
        )
        yield Cause(
            f"{lease} {end}",
            f"{remedy}, or raise `keep_seconds`",
            about=f"{LINK}{row.flow}: lease time {reached:.0%}",
        )
    if reached := _reached(row.room):
        full = (
            "it gives up the oldest"
            if row.room >= 1
            else "at 100% it gives up the oldest, so that its senders need not wait"
        )
        remedy = f"find out why the flow is behind (`flumeng flow lag {row.flow}`)"
        if state == "suspended":
            remedy = resume
        yield Cause(
            f"site {row.site} keeps {row.events} events ({amount(row.bytes)}) for flow {row.flow}, "
            f"{row.room:.0%} of a journal's room there; {full}",
            f"{remedy}, or raise `journal.max_bytes` of flow {row.source} there",
            about=f"{LINK}{row.flow}: lease room {reached:.0%}",
        )


def causes_of_leases(rows: Sequence[HoldingCursor]) -> Iterator[Cause]:
    """Yield causes of the leases of other sites, at each of SHARES of their time and room, and of
    the clocks of the gateways that renew them."""
    apart = [row for row in rows if row.site and abs(row.clock_ahead_seconds) > CLOCK_SECONDS]
    if apart:
        worst = max(apart, key=lambda row: abs(row.clock_ahead_seconds))
        ahead = worst.clock_ahead_seconds
        yield Cause(
            f"the clock of a gateway here was {apart_from_zookeeper(ahead)} when it renewed the "
            f"lease {worst.cursor} of flow {worst.flow}; leases end by ZooKeeper's clock",
            "synchronize the clocks of the gateways' hosts and of ZooKeeper's",
            about="clock of a gateway",
        )
    for row in rows:
        if row.keep_seconds == leases.ENDED_SECONDS:
            continue
        who = f"flow {row.reads_as} of site {row.site}"
        kept = "its unread events"
        if row.lag:
            kept = f"its {row.lag} unread events ({amount(row.bytes or 0)})"
        give_up = f"`flumeng cursor end {row.flow} {row.cursor}` gives them up now"
        if (used := row.time) is not None and (reached := _reached(used)):
            yield Cause(
                f"{who} has not renewed its lease on flow {row.flow} for "
                f"{span(row.age_seconds or 0)}, {used:.0%} of its {span(row.keep_seconds or 0)}; "
                f"at 100% {kept} are given up",
                f"see `flumeng status` at {row.site}, and the gateways here (`flumeng node list`); "
                + give_up,
                about=f"lease {row.flow}@{row.cursor}: time {reached:.0%}",
            )
        if row.room is not None and (reached := _reached(row.room)):
            fullest = max(row.held, key=lambda held: held.room or 0.0)
            yield Cause(
                f"{who} has not read {fullest.events} events of journal {fullest.journal}, "
                f"{row.room:.0%} of its `max_bytes`; at 100% they are given up, so that the "
                f"senders of flow {row.flow} need not wait",
                f"find out there why it is behind (`flumeng flow lag {row.reads_as}`), or raise "
                f"`journal.max_bytes` of flow {row.flow}; {give_up}",
                about=f"lease {row.flow}@{row.cursor}: room {reached:.0%}",
            )


def causes_of_breaks(cache: ReadCache, flows: Iterable[str], now: float) -> Iterator[Cause]:
    """Yield a cause for each broken lease, until it is acknowledged or SHOWN_SECONDS old."""
    names = sorted(flows)
    cache.read_each([paths.breaks(name) for name in names])
    for flow in names:
        for cursor, broke in sorted(lease_breaks.of_flow(cache, flow).items()):
            if not (broke.events or broke.at_least) or now - broke.time > SHOWN_SECONDS:
                continue
            site, _, reader = cursor.partition(":")
            lost = lease_breaks.counted(broke)
            what = (
                f"flow {reader} of site {site} has lost {lost} of flow {flow}, given up at "
                f"{_utc(broke.time)}: {broke.why}: {_gaps(broke)}"
            )
            if broke.away:
                what = (
                    f"the lease of flow {reader} of site {site} on flow {flow} ended at "
                    f"{_utc(broke.time)}: {broke.why}: {broke.events} unread events are no longer "
                    f"kept ({_gaps(broke)}), nor those after them"
                )
            yield Cause(
                what,
                f"inform operators of {site}, then `flumeng cursor acknowledge {flow} {cursor}`",
                about=f"lease {flow}@{cursor}: gap {broke.id}",
            )


def remote_source(text: str) -> tuple[str, str] | None:
    """Return the site and flow that a flow's text reads, if it reads another site."""
    try:
        spec = parse_flow(text)
    except SpecError:
        return None
    remotes = (source.options.remote for source in spec.sources)
    remote = next(filter(None, remotes), None)
    return (remote.site, remote.flow) if remote else None


def _reached(share: float) -> float:
    return next((least for least in SHARES if share >= least), 0.0)


def _gaps(broke: Break) -> str:
    """Return the last gaps, ``web.n1.0.0a1b seq 400 to 999``."""
    if not broke.gaps:
        return "journals that began and ended meanwhile are not counted"
    shown = [f"{gap.journal} seq {gap.start} to {gap.end - 1}" for gap in broke.gaps[-NAMED:]]
    earlier = len(broke.gaps) - len(shown)
    return ", ".join(shown) + (f" and {earlier} earlier gaps" if earlier > 0 else "")


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _utc(seconds: float) -> str:
    return f"{timestamps.utc(seconds)} UTC"


def apart_from_zookeeper(ahead_seconds: float) -> str:
    side = "ahead of" if ahead_seconds > 0 else "behind"
    return f"{span(abs(ahead_seconds))} {side} ZooKeeper's"


def span(seconds: float) -> str:
    """Return a duration with two digits or more: ``45 s``, ``12 min``, ``5.2 h``, ``3.1 d``."""
    for most, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < most:
            value = seconds / size
            return f"{value:.1f} {unit}" if unit == "h" and value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def amount(size: int) -> str:
    """Return a number of bytes: ``640 B``, ``12 MB``, ``1.2 GB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
