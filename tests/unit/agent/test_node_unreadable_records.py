"""An unreadable record harms the thing that it describes, and nothing else of that node."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.control.commands.cluster import export_cluster, import_cluster
from flumeng.control.commands.operator import Operator
from tests.unit.agent.node_bench import TEXT, Bench, task
from zkschema import paths

NEWER = b'{"v": 99}'
DAMAGED = [b"{", b"", NEWER, b"\x1f\x8b broken", b'{"v": 1, "tasks": 5}']


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.apply("web", "app")
    bench.assign(task("web"), task("app"))
    bench.turns()
    assert bench.states() == {"web": "running", "app": "running"}
    bench.told.clear()
    return bench


@pytest.mark.parametrize("data", DAMAGED)
def test_node_with_an_unreadable_assignment_keeps_the_last_one(bench: Bench, data: bytes) -> None:
    """Also after a restart; and it takes up the next assignment that it can read."""
    path = paths.assignment("n1")
    applied = bench.status.assignment_version
    bench.damage(path, data)
    bench.turns()
    assert (bench.states(), bench.told) == ({"web": "running", "app": "running"}, [])
    assert bench.status.assignment_version == applied
    assert str(path) in bench.status.problems
    assert len(bench.status.problems[str(path)]) <= 300

    bench.start()
    bench.turns()
    assert bench.states() == {"web": "running", "app": "running"}

    bench.store.tree.znodes[str(path)].version += 1
    bench.damage(path, b'{"v": 1, "tasks": []}')
    bench.turns()
    assert (bench.states(), bench.status.problems) == ({}, {})


@pytest.mark.parametrize("data", [*DAMAGED, None])
def test_unreadable_revision_fails_its_flow_alone(bench: Bench, data: bytes | None) -> None:
    bench.apply("other")
    path = str(paths.revision("other", "1"))
    before = bench.store.tree.znodes[path].data
    if data is None:
        del bench.store.tree.znodes[path]
    else:
        bench.damage(path, data)
    bench.assign(task("web"), task("app"), task("other"))
    bench.turns()
    assert bench.states() == {"web": "running", "app": "running", "other": "failed"}
    assert path in (bench.status.tasks["other/ingest.n1"].error or "")

    znodes = bench.store.tree.znodes
    if path not in znodes:
        znodes[path] = type(znodes["/"])(b"")
    bench.damage(path, before)
    bench.turns()
    assert bench.states()["other"] == "running"
    assert bench.told[-1]["tasks"][2]["spec"] == TEXT.format("other")
    assert bench.status.problems == {}


def test_task_with_an_invalid_name_is_left_out(bench: Bench) -> None:
    bench.assign(task("web"), task("../app"))
    bench.turns()
    assert bench.states() == {"web": "running"}
    assert "'../app'" in bench.status.problems["/nodes/n1/assignment"]


@pytest.mark.parametrize("path", ["/schema", "/nodes/n1", "/nodes/n1/story", "/nodes/n1/status"])
@pytest.mark.parametrize("data", [b"{", NEWER])
def test_node_continues_with_any_of_its_own_records_damaged(
    bench: Bench, path: str, data: bytes
) -> None:
    bench.damage(path, data)
    bench.turns()
    assert bench.told == []


def test_flow_missing_in_an_import_is_kept(bench: Bench) -> None:
    """An older export lacks flows that were made since. No command has deleted them."""
    older = export_cluster(bench.store)
    bench.apply("new")
    bench.assign(task("web"), task("app"), task("new"))
    bench.turns()
    assert "new.n1.0.light" in bench.store.children(paths.journals())
    for path in [path for path in bench.store.tree.znodes if path != "/"]:
        del bench.store.tree.znodes[path]
    import_cluster(Operator(bench.store, "a", "", 1.0), older)
    bench.told.clear()
    bench.turns()
    assert bench.states() == {"web": "running", "app": "running"}
    assert [told for told in bench.told if told["type"] == "remove"] == []
    assert "new.n1.0.light" in bench.store.children(paths.journals())
    assert "(new)" in bench.status.problems["unknown flows"]

    for path in [path for path in bench.store.tree.znodes if path.startswith("/flows/app")]:
        del bench.store.tree.znodes[path]
    bench.assign(task("web"))
    bench.turns()
    removed = {name for told in bench.told for name in told.get("journals", [])}
    assert removed == {"app.n1.0.light"}, "it was there after the import, and was deleted then"


def test_a_flow_that_was_deleted_while_the_node_was_away_is_dropped(bench: Bench) -> None:
    for path in [path for path in bench.store.tree.znodes if path.startswith("/flows/app")]:
        del bench.store.tree.znodes[path]
    bench.start()
    bench.turns()
    bench.assign(task("web"))
    bench.turns()
    assert "app.n1.0.light" not in bench.store.children(paths.journals())


@pytest.mark.long
def test_a_thousand_idle_flows_cost_a_node_little(bench: Bench) -> None:
    """Each journal's ack and each flow is looked at once in ten seconds, and nothing is written."""
    flows = [f"f{n}" for n in range(1000)]
    bench.apply(*flows)
    bench.assign(*(task(flow) for flow in flows))
    bench.turns(60.0)
    assert bench.states() == dict.fromkeys(flows, "running")
    bench.store.reads.clear()
    before = {path: znode.version for path, znode in bench.store.tree.znodes.items()}
    bench.turns(30.0)
    assert bench.records_read < 30 * 250
    after = {path: znode.version for path, znode in bench.store.tree.znodes.items()}
    assert after == before
