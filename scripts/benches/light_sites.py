"""``python -m benches.light_sites HOSTS NAME...``: whole clusters that cost next to nothing.

Each is a chroot below HOSTS with a real master and one node, in one session. The node registers and
says that it runs whatever it is assigned. They run until the process is killed.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from functools import partial

from flumeng.control.master.daemon import Master, collect_garbage_rarely
from flumeng.control.zookeeper import ABSENT, Put, Store, Version, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform import processes
from zkschema import paths
from zkschema.records import COLLECT, INGEST, LiveNode, Node, NodeStatus, TaskStatus

NODE = "n1"
SESSION_SECONDS = 30.0
PATIENCE_SECONDS = 60.0


def main(hosts: str, *names: str) -> None:
    processes.die_with_parent()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    collect_garbage_rarely()
    assigned: queue.SimpleQueue[Store] = queue.SimpleQueue()
    for name in names:
        _start(f"{hosts}/{name}", assigned)
    print("ready", flush=True)
    while True:
        _obey(assigned.get())


def _start(hosts: str, assigned: queue.SimpleQueue[Store]) -> None:
    store = connect(hosts, session_seconds=SESSION_SECONDS, wait_seconds=PATIENCE_SECONDS)
    tree.init(store)
    live = LiveNode(uuid=NODE, incarnation="i", pid=1, version="0", since=0.0)
    store.commit(
        [
            Put(paths.node(NODE), Node(uuid=NODE, roles=(INGEST, COLLECT)), ABSENT),
            Put(paths.live_node(NODE), live, ABSENT),
        ]
    )
    store.watch(paths.assignment(NODE), partial(_tell, assigned, store))
    threading.Thread(target=Master(store, "m1").run, name=f"master {hosts}", daemon=True).start()


def _tell(assigned: queue.SimpleQueue[Store], store: Store, _path: str) -> None:
    assigned.put(store)


def _obey(store: Store) -> None:
    """The status of a node that has just carried out its assignment."""
    assignment = store.read(paths.assignment(NODE))
    if assignment is None or not isinstance(assignment.version, Version):
        return
    said = store.read(paths.status(NODE))
    status = NodeStatus(
        assignment_version=assignment.version.number,
        tasks={
            f"{task.flow}/{task.task}": TaskStatus(
                epoch=task.epoch, revision=task.revision, state="running"
            )
            for task in assignment.value.tasks
            if task.state != "draining"
        },
    )
    if said is None or said.value != status:
        store.write(paths.status(NODE), status, said.version if said else ABSENT)


if __name__ == "__main__":
    main(*sys.argv[1:])
