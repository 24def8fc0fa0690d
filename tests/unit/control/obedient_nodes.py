"""Masters and nodes over a fake store, ticked until they come to rest."""

from __future__ import annotations

import pytest

from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT
from tests.testkit.store import FakeStore
from zkschema import paths, records


def settle(store: FakeStore) -> None:
    """Masters plan and nodes obey until nothing is left to do."""
    session = FakeStore(store.tree)
    master = Master(session, "m")
    for _ in range(50):
        said = master.tick()
        for name in store.children(paths.live_nodes()):
            obey(store, name)
        if said == "nothing to do" == master.tick():
            session.close()
            return
    pytest.fail("the masters did not come to rest")


def obey(store: FakeStore, name: str) -> None:
    found = store.read(paths.assignment(name))
    if found is None:
        return
    tasks = {
        f"{task.flow}/{task.task}": records.TaskStatus(
            epoch=task.epoch, revision=task.revision, state="running"
        )
        for task in found.value.tasks
        if task.state != "draining"
    }
    status = records.NodeStatus(assignment_version=found.version.number, tasks=tasks)
    before = store.read(paths.status(name))
    if before is None or before.value != status:
        store.write(paths.status(name), status, before.version if before else ABSENT)
