"""A large cluster in a store: flows, planned by a real master, and nodes that one process plays.

``python -m tests.testkit.large_cluster DIRECTORY`` is the process: a server for each node, with
journals in memory. The first line of its input is the journals of each node as JSON; it prints the
address of each node, and ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from flumeng.control.commands.flows import apply_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT, Put, Store
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving.server import JournalServer
from tests.testkit.journal import numbered_events
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import COLLECT, INGEST, Ack, Journal, LiveNode, Node, NodeStatus, TaskStatus

Answering = Callable[[Mapping[str, Sequence[str]]], Mapping[str, str]]
"""Gets the journals of each node, and returns the address of each."""
ZONES = 4
NODES_PER_FLOW = 4
EVENTS = 1000
ACKED = EVENTS
JOURNAL_BYTES = 1 << 20
FLOW = """
flow: {name}
labels: {{team: team{team}}}
sources: [{{syslog: {{listen: "127.0.0.1:0"}}}}]
place: {{ingest: {{labels: {{group: "{group}"}}}}, collect: {{tasks: 2}}}}
filters: [{{where: "severity <= 4"}}]
sinks: [noop]
"""


def nobody_answers(by_node: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    return dict.fromkeys(by_node, "")


def fill(
    store: Store, flows: int, nodes: int, answering: Answering = nobody_answers
) -> Sequence[str]:
    """Fill an initialised store with running flows, and return their names. Each flow has journals
    on four nodes, with 1,000 events, all acked. ``answering`` starts what answers for the nodes."""
    groups = max(1, nodes // NODES_PER_FLOW)
    names = [f"n{number:04d}" for number in range(nodes)]
    flow_names = [f"flow-{number:04d}" for number in range(flows)]
    by_node: dict[str, list[str]] = {name: [] for name in names}
    texts = {}
    for number, flow in enumerate(flow_names):
        group = number % groups
        for node in names[group::groups][:NODES_PER_FLOW]:
            by_node[node].append(f"{flow}.{node}.0.light")
        texts[flow] = FLOW.format(name=flow, team=number % 10, group=group)
    addresses = answering(by_node)
    store.commit_each([_node(name, n % groups, addresses) for n, name in enumerate(names)])
    for _ in apply_flows(Operator(store, "bench", "", 0.0), texts):
        pass
    store.commit_each([_journal(name) for journals in by_node.values() for name in journals])
    master = Master(store, "m1")
    while master.tick() != "nothing to do":
        pass
    _report_running(store, names)
    return flow_names


@contextmanager
def large_cluster(
    store: Store, folder: Path, flows: int = 1000, nodes: int = 400
) -> Iterator[Sequence[str]]:
    """As ``fill``, with nodes that answer until the end."""
    with ExitStack() as stack:
        yield fill(store, flows, nodes, lambda by: stack.enter_context(_answering(folder, by)))


def _node(name: str, group: int, addresses: Mapping[str, str]) -> Sequence[Put]:
    live = LiveNode(
        uuid=name, incarnation="i", pid=1, version="0", since=0.0, addresses=(addresses[name],)
    )
    record = Node(
        uuid=name,
        roles=(INGEST, COLLECT),
        labels={"group": str(group)},
        zone=f"zone{int(name[1:]) % ZONES}",
    )
    return [Put(paths.node(name), record, ABSENT), Put(paths.live_node(name), live, ABSENT)]


def _journal(name: str) -> Sequence[Put]:
    flow, node, *_ = name.split(".")
    record = Journal(flow=flow, node=node, primary=node, term=1, in_sync=(node,))
    ack = Ack(epoch=1, offset=ACKED)
    return [
        Put(paths.journal(name), record, ABSENT),
        Put(paths.ack(flow, CURSOR_MAIN, name), ack, ABSENT),
    ]


def _report_running(store: Store, nodes: Sequence[str]) -> None:
    """Let each node say that it runs what it is assigned."""
    assigned = store.read_many([paths.assignment(name) for name in nodes])
    store.commit_each(
        [
            [Put(paths.status(name), _status(assignment.version.number, assignment.value), ABSENT)]
            for name, assignment in zip(nodes, assigned, strict=True)
            if assignment is not None
        ]
    )


def _status(version: int, assignment: object) -> NodeStatus:
    tasks = {
        f"{task.flow}/{task.task}": TaskStatus(
            epoch=task.epoch, revision=task.revision, state="running"
        )
        for task in assignment.tasks  # type: ignore[attr-defined]
    }
    return NodeStatus(assignment_version=version, tasks=tasks)


@contextmanager
def _answering(folder: Path, by_node: Mapping[str, Sequence[str]]) -> Iterator[Mapping[str, str]]:
    """Yield the address of each node of a process that answers for all."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.testkit.large_cluster", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(by_node) + "\n")
        process.stdin.flush()
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()


def main(folder: Path) -> None:
    by_node: Mapping[str, Sequence[str]] = json.loads(sys.stdin.readline())
    addresses = {}
    for node, names in by_node.items():
        journals = {name: _filled(folder, name) for name in names}
        server = JournalServer(
            "127.0.0.1", journals=partial(dict, journals), acked=lambda _journal: ACKED
        )
        addresses[node] = server.address
    print(json.dumps(addresses), flush=True)
    sys.stdin.read()
    os._exit(0)


def _filled(folder: Path, name: str) -> MemoryJournal:
    journal = MemoryJournal.create(folder, name, limits=Limits(JOURNAL_BYTES))
    journal.append(numbered_events(0, EVENTS))
    journal.sync()
    return journal


if __name__ == "__main__":
    main(Path(sys.argv[1]))
