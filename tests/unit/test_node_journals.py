"""What lies on a node's disk is registered, and trimmed, whatever became of a znode."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.node.daemon import ALL_SECONDS
from flumeng.operations.cluster import export_cluster, import_cluster
from flumeng.store import ANY
from tests.unit.node_bench import Bench, task
from zkschema import paths

JOURNAL = "web.n1.0.light"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.apply("web")
    bench.assign(task("web"))
    bench.turns()
    assert bench.store.children(paths.journals()) == [JOURNAL]
    return bench


def test_a_registration_that_was_removed_is_there_again_after_a_reconnect(bench: Bench) -> None:
    bench.store.remove(paths.journal(JOURNAL), ANY)
    bench.reconnect()
    assert bench.store.children(paths.journals()) == [JOURNAL]


def test_a_registration_that_was_removed_is_there_again_in_time(bench: Bench) -> None:
    bench.store.remove(paths.journal(JOURNAL), ANY)
    bench.turns(ALL_SECONDS + 20)
    assert bench.store.children(paths.journals()) == [JOURNAL]


def test_an_import_that_knows_neither_node_nor_journal_gets_both(tmp_path: Path) -> None:
    """Events of a journal that is not registered are not collected."""
    bench = Bench(tmp_path / "other")
    bench.apply("web")
    older = export_cluster(bench.store)
    bench.assign(task("web"))
    bench.turns()
    for path in [path for path in bench.store.tree.znodes if path != "/"]:
        del bench.store.tree.znodes[path]
    older["znodes"] = {p: z for p, z in older["znodes"].items() if not p.startswith("/nodes/")}
    import_cluster(bench.store, older, author="a", reason="", now=1.0)
    bench.turns()
    assert bench.store.exists(paths.node("n1"))
    assert bench.store.children(paths.journals()) == [JOURNAL]


def test_a_registration_that_was_repaired_is_closed_with_its_journal(bench: Bench) -> None:
    znode = bench.store.tree.znodes[str(paths.journal(JOURNAL))]
    good = znode.data
    bench.damage(paths.journal(JOURNAL), b"{")
    bench.reconnect()
    bench.assign()
    bench.turns()
    assert str(paths.journal(JOURNAL)) in bench.status.problems
    znode.version += 1
    bench.damage(paths.journal(JOURNAL), good)
    bench.turns()
    found = bench.store.read(paths.journal(JOURNAL))
    assert found is not None
    assert found.value.closed
    assert bench.status.problems == {}


def test_a_damaged_registration_that_was_removed_is_written_anew(bench: Bench) -> None:
    bench.damage(paths.journal(JOURNAL), b"{")
    bench.reconnect()
    assert str(paths.journal(JOURNAL)) in bench.status.problems
    bench.store.remove(paths.journal(JOURNAL), ANY)
    bench.turns()
    assert bench.store.children(paths.journals()) == [JOURNAL]
    assert bench.status.problems == {}


def test_a_damaged_registration_of_no_journal_here_is_told_until_it_goes(bench: Bench) -> None:
    other = paths.journal("web.n1.0.gone")
    bench.store.tree.znodes[str(other)] = type(bench.store.tree.znodes["/"])(b"{")
    bench.reconnect()
    assert str(other) in bench.status.problems
    del bench.store.tree.znodes[str(other)]
    bench.turns(ALL_SECONDS + 20)
    assert bench.status.problems == {}


def test_a_revision_is_a_problem_while_a_task_needs_it(bench: Bench) -> None:
    revision = paths.revision("web", "1")
    bench.apply("app")
    bench.damage(revision, b"{")
    bench.start()
    bench.turns()
    assert str(revision) in bench.status.problems
    bench.assign(task("app"))
    bench.turns()
    assert bench.status.problems == {}
