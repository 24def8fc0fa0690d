"""The health of the cluster, as the dict that ``status`` returns and all interfaces show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flumeng.control.commands.chains import readers_of
from flumeng.control.commands.lookup import readable_by_name
from flumeng.control.commands.replicas import replicas_of
from flumeng.control.queries import (
    counters,
    cursors,
    failovers,
    fan_out,
    journal_causes,
    journals,
    lag,
    links,
    overview,
    queues,
    timestamps,
)
from flumeng.control.queries.acks import AckRow, Positions, acks_of
from flumeng.control.queries.causes import Cause, of_unreadable
from flumeng.control.queries.flow_health import ROOM, flow_health
from flumeng.control.queries.lag import FlowLag
from flumeng.control.queries.overview import FlowRow, NodeRow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.queries.task_status import TaskRow
from flumeng.control.queries.zookeeper_clock import zookeeper_now
from flumeng.control.snapshot import journal_registry, leases
from flumeng.control.zookeeper import ReadableStore
from flumeng.journal.serving.account import Account
from zkschema import paths, records
from zkschema.records import ABORTED, COLLECT, DISCOVER, LiveMaster

Answer = tuple[Mapping[str, Account], Sequence[Mapping[str, Any]]]
"""The accounts of a worker's journals, and the counters of its sources."""
ENDED = "ended with code"
"""How a node reports a child process that ended, before its exit code."""
HELD_SECONDS = 5.0
"""A source held for a shorter time is not reported: it may be a burst."""
TROUBLE_ADVICE = {
    "certificate": "replace it on that master's host",
    "master": "its log shows where it hangs once it has ended itself; if it does not end, restart "
    "it",
}
"""Advice about a master's trouble, by the first word of its subject."""
RETRIED = "it stays unchanged; the master tries again within about a minute, see its log"


@dataclass(frozen=True)
class Survey:
    """``status``: what all interfaces show; ``flows``, ``nodes``: the rows that it is made of."""

    status: dict[str, Any]
    flows: Sequence[FlowRow]
    nodes: Sequence[NodeRow]


def status(
    store: ReadableStore, ask: journals.Ask, ask_counters: counters.Ask, now: float
) -> dict[str, Any]:
    """Return the health of the cluster and its flows; ``now`` is in seconds since the epoch."""
    return survey(store, ask, ask_counters, now).status


def survey(
    store: ReadableStore, ask: journals.Ask, ask_counters: counters.Ask, now: float
) -> Survey:
    """Return ``status`` with the rows of flows and nodes, all of one moment."""
    cache = ReadCache.of(store)
    flows, linked = links.with_links(overview.flows(cache, now=now), cache, now)
    nodes = overview.nodes(cache)
    names = cache.children(paths.live_masters())
    live_records = readable_by_name(cache, paths.live_master, names)
    masters = {name: live_records[name].value if name in live_records else None for name in names}
    answers_by_node, silent = fan_out.ask_all(
        cache, lambda address: {address: (ask(address), ask_counters(address))}
    )
    accounts = {
        node: {name: account for own, _ in answers.values() for name, account in own.items()}
        for node, answers in answers_by_node.items()
    }
    acks = acks_of(cache, Positions(accounts, silent))
    newest_accounts = lag.newest(accounts)
    lags = _lags(flows, acks, newest_accounts, now)
    acked: Counter[str] = Counter()
    for ack in acks:
        acked[ack.flow] += ack.offset or 0
    cluster = cache.read(paths.cluster())
    cache.read(paths.moves())
    cache.read_each([paths.lease(*name) for name in leases.names(cache)])
    where = Positions(accounts, silent)
    there = zookeeper_now(cache, now)
    held = cursors.rows(cache, where, newest_accounts, there, cursors.of_sites(cache))
    states = {flow.flow: flow.state for flow in flows}
    cache.read_each([paths.site(name) for name in cache.children(paths.sites())])
    maintenance = cluster.value.maintenance if cluster else None
    causes = [
        *of_unreadable(cache.unreadable.values()),
        *_of_masters(masters),
        *_of_troubles(masters, flows),
        *_of_maintenance(maintenance),
        *_of_nodes(nodes, silent),
        *failovers.causes(cache, held, now),
        *links.causes_of_links(linked, states, now, failovers.paused(cache)),
        *_of_flows(flows, cache, links.excused(linked)),
        *_of_held(answers_by_node, cache, states),
        *_of_lost(answers_by_node),
        *queues.causes(cache),
        *_of_replicas(cache, nodes, acks),
        *journal_causes.of_kept(flows, cache, newest_accounts, now),
        *_of_clock(now - there),
        *links.causes_of_leases(held),
        *links.causes_of_breaks(cache, states, now),
        *(cause for flow in flows for cause in lag.causes(flow, lags[flow.flow])),
    ]
    found = {
        "health": "degraded" if causes else "ok",
        "causes": [
            {"what": cause.what, "advice": cause.advice, "about": cause.identity}
            for cause in causes
        ],
        "maintenance": maintenance is not None,
        "masters": names,
        "nodes": {"live": sum(node.live for node in nodes), "registered": len(nodes)},
        "flows": [_flow(flow, acked[flow.flow], lags[flow.flow]) for flow in flows],
        "links": [asdict(link) for link in linked],
        "leases": [asdict(row.listed()) for row in held],
    }
    return Survey(found, flows, nodes)


def _lags(
    flows: Sequence[FlowRow], acks: Sequence[AckRow], accounts: Mapping[str, Account], now: float
) -> dict[str, FlowLag]:
    of_flow: dict[str, list[AckRow]] = {flow.flow: [] for flow in flows}
    for ack in acks:
        of_flow.setdefault(ack.flow, []).append(ack)
    batch = {flow.flow: flow.batch_seconds for flow in flows}
    return {
        flow: lag.flow_lag(own, accounts, now, batch.get(flow, 0.0))
        for flow, own in of_flow.items()
    }


def _flow(flow: FlowRow, acked: int, behind: FlowLag) -> dict[str, Any]:
    idle = behind.events == 0 and not behind.unknown and behind.still
    health = flow_health(flow.state, flow.problem, flow.tasks, idle=idle, waits=flow.waits)
    return {
        "flow": flow.flow,
        "part_of": flow.part_of,
        "state": flow.state,
        "health": {**asdict(health), "shown": str(health)},
        "revision": flow.revision,
        "tasks": len(flow.tasks),
        "running": sum(task.state == "running" for task in flow.tasks),
        "acked": acked,
        "lag": behind.events,
        "lag_unknown": behind.unknown,
        "lag_seconds": behind.seconds,
        "lag_trend": behind.trend,
        "lag_limit_seconds": flow.lag_limit_seconds,
        "rollout": asdict(flow.rollout) if flow.rollout else None,
        "went_back": flow.went_back,
    }


def _of_held(
    nodes: Mapping[str, Mapping[str, Answer]], store: ReadableStore, states: Mapping[str, str]
) -> Iterator[Cause]:
    for node, answers in sorted(nodes.items()):
        for _, counted in answers.values():
            for row in counted:
                if row.get("held_by") and row.get("held_seconds", 0.0) >= HELD_SECONDS:
                    readers = ", ".join(readers_of(store, row["flow"]))
                    others = readers and f", or {readers} (`flumeng cursor list {row['flow']}`)"
                    remedy = f"find out why the flow is behind (`flumeng flow lag {row['flow']}`)"
                    if states.get(row["flow"]) == "suspended":
                        remedy = f"resume the paused flow (`flumeng flow resume {row['flow']}`)"
                    yield Cause(
                        f"flow {row['flow']}: {row['source']} on node {node} has accepted nothing "
                        f"for {row['held_seconds']:.0f} s: {row['held_by']}",
                        f"senders wait; {remedy}, or free space{others}",
                        about=f"flow {row['flow']}: {row['source']} on node {node} takes nothing",
                    )


def _of_lost(answers_by_node: Mapping[str, Mapping[str, Answer]]) -> Iterator[Cause]:
    for node, answers in sorted(answers_by_node.items()):
        lost: Counter[tuple[str, str]] = Counter()
        for _, counted in answers.values():
            for row in counted:
                lost[row["flow"], row["source"]] += row.get("lost_files", 0)
        for (flow, source), files in sorted(lost.items()):
            if files:
                yield Cause(
                    f"flow {flow}: {source} on node {node}: files truncated, deleted or "
                    f"compressed before they were fully read: {files}",
                    "the node's log names them; rotate later or delay compression",
                    about=f"flow {flow}: {source} on node {node}: lost files",
                )


def _of_replicas(
    cache: ReadCache, nodes: Sequence[NodeRow], acks: Sequence[AckRow]
) -> Iterator[Cause]:
    registered = journal_registry.journals(cache)
    flows = {journal.flow for journal in registered.values() if journal.lineage}
    replication = {flow: replicas_of(cache, flow) for flow in flows}
    return journal_causes.of_replicas(
        registered,
        {flow: replicas for flow, replicas in replication.items() if replicas is not None},
        {node.node for node in nodes if node.live},
        {ack.partition: ack.offset or 0 for ack in acks},
    )


def _of_masters(masters: Mapping[str, LiveMaster | None]) -> Iterator[Cause]:
    if not masters:
        yield Cause("no master is live: nothing is planned or moved", "start `flumeng master`")
    for name, live in masters.items():
        if live and not live.plans and "share" in live.troubles:
            yield Cause(
                f"master {name} cannot plan: {live.troubles['share']}",
                "see its log; it retries automatically",
                about=f"master {name} cannot plan",
            )


def _of_troubles(
    masters: Mapping[str, LiveMaster | None], flows: Sequence[FlowRow]
) -> Iterator[Cause]:
    """Yield the masters' troubles, but not ``share`` and those of flows with a problem."""
    reported = {f"flow {flow.flow}" for flow in flows if flow.problem}
    reporters: dict[tuple[str, str], list[str]] = {}
    for name, live in masters.items():
        for topic, why in live.troubles.items() if live else ():
            if topic not in reported and topic != "share":
                reporters.setdefault((topic, why), []).append(name)
    for (topic, why), names in sorted(reporters.items()):
        yield Cause(
            f"{topic}: {why} (master {', '.join(names)})",
            TROUBLE_ADVICE.get(topic.partition(" ")[0], RETRIED),
            about=f"{topic}: troubles of masters",
        )


def _of_maintenance(maintenance: records.Maintenance | None) -> Iterator[Cause]:
    if maintenance is None:
        return
    since = f"{timestamps.utc(maintenance.since)} UTC"
    if maintenance.automatic:
        yield Cause(
            f"maintenance mode, begun automatically at {since}: {maintenance.why}",
            "start the missing nodes, and it ends automatically; if they are gone for good, end it "
            "with `flumeng cluster maintenance off`",
            about="maintenance mode",
        )
    else:
        yield Cause(
            f"maintenance mode, by {maintenance.who} at {since}: {maintenance.why}",
            "tasks stay on their nodes until `flumeng cluster maintenance off`",
            about="maintenance mode",
        )


def _of_clock(ahead_seconds: float) -> Iterator[Cause]:
    if abs(ahead_seconds) > links.CLOCK_SECONDS:
        yield Cause(
            f"this host's clock is at least {links.apart_from_zookeeper(ahead_seconds)}: ages and "
            "times that are shown here may be wrong by that",
            "synchronize the clocks of this host and of ZooKeeper's",
            about="clock of this host",
        )


def _of_nodes(nodes: Sequence[NodeRow], silent: Sequence[str]) -> Iterator[Cause]:
    if not nodes:
        yield Cause("no node has registered", "start `flumeng node run` on a host")
    for node in nodes:
        if not node.live and node.desired == "active":
            yield Cause(
                f"node {node.node} is not live",
                "start `flumeng node run` on its host; if the host is gone for good: "
                f"`flumeng node decommission {node.node} --discard`",
            )
        if node.live:
            for subject, why in node.problems.items():
                yield _of_node_problem(node.node, subject, why)
        if node.node in silent:
            yield Cause(
                f"node {node.node} has not answered at {node.address} within "
                f"{fan_out.ASK_SECONDS:g} s when asked for its journals",
                "a busy node may answer next time; else see its log, and check that the port is "
                "reachable from here",
                about=f"node {node.node} has not answered",
            )


def _of_node_problem(node: str, subject: str, why: str) -> Cause:
    log = f"its event log, `flumeng node story {node}`"
    if why.startswith(ENDED):
        return Cause(
            f"node {node}: its process {subject} {why}",
            f"the node restarts it; if it ends again, see the node's log and {log}; code -9 often "
            "means that the host's memory ran out",
            about=f"node {node}: {subject}",
        )
    return Cause(
        f"node {node}: {subject}: {why}",
        f"see {log}; for an unreadable znode `flumeng schema verify`",
        about=f"node {node}: {subject}",
    )


def _of_flows(
    flows: Sequence[FlowRow], cache: ReadCache, excused: Collection[tuple[str, str]]
) -> Iterator[Cause]:
    """Yield causes of flows and their tasks. ``excused``: flows with errors reported as links."""
    for flow in flows:
        if flow.problem and not any(p in flow.problem for p in cache.unreadable):
            yield Cause(
                f"flow {flow.flow}: {flow.problem}",
                "apply a corrected file with `flumeng flow apply`",
                about=f"flow {flow.flow}: problem",
            )
        if flow.went_back and not flow.went_back.startswith(ABORTED):
            yield Cause(
                f"flow {flow.flow} went back to revision {flow.revision} by itself: "
                f"{flow.went_back}",
                "correct the file and apply it (`flumeng flow history` and `diff` show the "
                "failed revision)",
            )
        if flow.state not in ("running", "suspended"):
            continue
        hosts = sorted({task.node for task in flow.tasks if task.kind == COLLECT and task.node})
        if len(hosts) > 1 and flow.local_paths and flow.delivery == "exactly-once":
            yield Cause(
                f"flow {flow.flow} is collected on {', '.join(hosts[:3])} into "
                f"{flow.local_paths[0]}, a local disk of each: when one dies, the others cannot "
                "finish its decided batch",
                "set `shared: true` in the sink if they see the same files there; else write to a "
                "URL, or let `place.collect.labels` select one host",
                about=f"flow {flow.flow}: a local path on several hosts",
            )
        if not flow.tasks and flow.state == "running" and not flow.problem:
            yield Cause(
                f"flow {flow.flow} is not planned yet",
                "wait: a master plans it as soon as it sees it",
            )
        for task in flow.tasks:
            yield from _of_standbys(task)
            if task.kind == DISCOVER and (flow.flow, task.why) in excused:
                continue
            if task.state != "running" and (flow.state == "running" or task.kind != COLLECT):
                yield _of_task(task, flow)
            elif task.health:
                yield Cause(
                    f"task {task.key} has failed several times in a row, and has not run long "
                    "enough since to count as healthy",
                    "wait; if this stays, see `flumeng node story` and the log of its node",
                    about=f"task {task.key}",
                )
            elif task.state == "running" and task.kind == DISCOVER and task.why:
                yield Cause(
                    f"task {task.key} runs with problems: {task.why}",
                    "partitions discovered before are still read; fix the reported problem",
                    about=f"task {task.key}: discovery",
                )
            elif task.state == "running" and task.kind == COLLECT and task.why:
                yield Cause(
                    f"task {task.key} runs with problems: {task.why}",
                    "other partitions and sinks go on, and these too once they are repaired: for "
                    "damage see `docs/how-to/damaged-journal.md`, for sinks "
                    "`docs/how-to/batch-that-cannot-finish.md`",
                    about=f"task {task.key}: troubles",
                )


def _of_standbys(task: TaskRow) -> Iterator[Cause]:
    for node, state in task.standbys.items():
        if state.startswith("failed"):
            yield Cause(
                f"the standby of task {task.key} on {node} is not ready; {state}",
                "fix the cause on that node; the standby is retried automatically",
                about=f"standby of task {task.key} on {node}",
            )


def _of_task(task: TaskRow, flow: FlowRow) -> Cause:
    advice = {
        "down": "start its node, or wait until a master moves the task",
        "starting": "wait; if this stays, see the node's log",
        "draining": "wait: it moves to another node",
        "waiting": ROOM,
        "retrying": "check that the sink in the error is up and reachable from the task's node; "
        "the task retries automatically (`docs/how-to/batch-that-cannot-finish.md`)",
        "failed": "fix the cause; the task is retried automatically",
        "stopped": "see the node's log",
        "unknown": "see the problem of its node's status record",
    }
    state = f"task {task.flow}/{task.task} is {task.state}"
    remedy = advice.get(task.state, advice["stopped"])
    rollout = flow.rollout
    if rollout and task.wanted == rollout.revision and task.state in ("retrying", "failed"):
        state += f" with the new revision {rollout.revision}"
        remedy = (
            f"`flumeng flow rollout abort {flow.flow}` goes back to revision {rollout.before}; if "
            f"the new revision is not to blame, {remedy}"
        )
    return Cause(
        f"{state}: {task.why}" if task.why else state, remedy, about=f"task {task.flow}/{task.task}"
    )
