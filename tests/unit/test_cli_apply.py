"""``flumeng flow apply`` of many files: one transaction while it fits, and what is told of each."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from flumeng.config.document import MAX_BYTES
from flumeng.config.flow_files import FlowFilesError, read_flows
from flumeng.control.commands.flows import apply_flow, apply_flows, delete_flow, rollback_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import RefusedError
from flumeng.control.zookeeper import ABSENT, Store, Version, Write, tree
from flumeng.control.zookeeper import Path as ZPath
from flumeng.platform.errors import ConflictError
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.verify import verify

FLOW = "flow: {name}\nsources: [tail: {{paths: [/a]}}]\nsinks: [noop]\n"
SIGN = ("ann", "", NOON)


class Counting(FakeStore):
    """Counts transactions and reads; ``fails_at`` loses that transaction."""

    def __init__(self, store: FakeStore, fails_at: int = 0, error: type[Exception] = ConflictError):
        super().__init__(store.tree)
        self.commits = self.reads = 0
        self._fails_at = fails_at
        self._error = error

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self.commits += 1
        if self.commits == self._fails_at:
            raise self._error("somebody else was first")
        return super().commit(writes)

    def children(self, path: ZPath) -> list[str]:
        self.reads += 1
        return super().children(path)


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    tree.init(store)
    return store


def text(name: str) -> str:
    return FLOW.format(name=name)


def write(folder: Path, *names: str) -> list[Path]:
    files = [folder / f"{name}.yaml" for name in names]
    for file in files:
        file.write_text(text(file.stem))
    return files


def failing(store: FakeStore, error: type[Exception], at: int) -> Shell:
    class Failing(Shell):
        def connect(self, hosts: str) -> Store:  # noqa: ARG002  there is one
            return Counting(FakeStore(store.tree), at, error)

    return Failing(store.tree)


def padded(name: str) -> str:
    """So long that a few fill a transaction."""
    noise = Random(name).randbytes(3 * (MAX_BYTES - 1000) // 4)
    return f"{text(name)}# {base64.b64encode(noise).decode()}"


def test_files_of_one_command_are_one_transaction_with_one_audit_entry(store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), text("f0"))
    counting = Counting(store)
    audits = len(store.children(paths.audits()))
    texts = {f"f{number}": text(f"f{number}") for number in range(50)}
    unchanged, applied = apply_flows(Operator(counting, *SIGN), texts)
    assert [one.flow for one in unchanged] == ["f0"]
    assert [one.flow for one in applied] == [f"f{number}" for number in range(1, 50)]
    assert counting.commits == 1
    assert len(store.children(paths.audits())) == audits + 1
    assert verify(store.dump()) == []


def test_a_thousand_flows_cost_few_transactions_and_few_looks(store: FakeStore) -> None:
    counting = Counting(store)
    texts = {f"f{number}": text(f"f{number}") for number in range(1000)}
    assert sum(map(len, apply_flows(Operator(counting, *SIGN), texts))) == 1000
    assert counting.commits <= 10
    assert counting.reads <= 20


def test_what_may_not_be_applied_keeps_all_from_being_written(
    store: FakeStore, tmp_path: Path
) -> None:
    apply_flow(Operator(store, *SIGN), text("b"))
    delete_flow(Operator(store, *SIGN), "b")
    journal = records.Journal(flow="c", node="n1", primary="n1", term=1, in_sync=("n1",))
    store.write(paths.journal("c.n1.0.aa"), journal, ABSENT)
    with pytest.raises(RefusedError) as refused:
        list(apply_flows(Operator(store, *SIGN), {name: text(name) for name in "abcd"}))
    assert set(refused.value.refused) == {"b", "c"}
    assert store.children(paths.flows()) == ["b"]
    shell = Shell(store.tree)
    result = shell.run("flow", "apply", *write(tmp_path, "a", "b"), "--json")
    assert result.exit_code == 3
    rows = json.loads(result.stdout)
    assert [(row["flow"], row["revision"], row["changed"]) for row in rows] == [
        ("a", None, False), ("b", None, False),
    ]  # fmt: skip
    assert rows[0]["error"] == "not applied, because of another file"
    assert "is being deleted" in rows[1]["error"]


def test_a_part_that_fails_is_told_with_what_was_applied(store: FakeStore, tmp_path: Path) -> None:
    files = write(tmp_path, *(f"f{number}" for number in range(10, 34)))
    for file in files:
        file.write_text(padded(file.stem))
    result = failing(store, ConflictError, at=2).run("flow", "apply", *files, "--json")
    assert result.exit_code == 3
    rows = json.loads(result.stdout)
    done = [row["flow"] for row in rows if row["error"] is None]
    assert done == store.children(paths.flows())
    assert 0 < len(done) < len(files)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert {row["error"] for row in rows[len(done) :]} == {"somebody else was first"}


def test_without_json_it_is_said_how_many_were_applied(store: FakeStore, tmp_path: Path) -> None:
    files = write(tmp_path, *(f"f{number}" for number in range(10, 34)))
    for file in files:
        file.write_text(padded(file.stem))
    result = failing(store, ConflictError, at=2).run("flow", "apply", *files)
    done = store.children(paths.flows())
    assert result.stdout.splitlines() == [f"flow {flow} revision 1" for flow in done]
    said = f"flumeng: {len(done)} of 24 files are applied, {24 - len(done)} not\n"
    assert result.stderr == said + "flumeng: somebody else was first\n"


def test_json_lists_the_files_when_one_has_a_problem(store: FakeStore, tmp_path: Path) -> None:
    files = write(tmp_path, "a", "b")
    files[1].write_text("flow: b\n")
    result = Shell(store.tree).run("flow", "apply", *files, "--json")
    assert result.exit_code == 2
    first, second = json.loads(result.stdout)
    assert (first["error"], first["revision"]) == ("not applied, because of another file", None)
    assert "sources" in second["error"]
    assert store.children(paths.flows()) == []


def test_json_lists_the_files_whatever_ended_the_command(store: FakeStore, tmp_path: Path) -> None:
    files = write(tmp_path, "a", "b")
    shell = Shell(store.tree)
    refused = shell.run("flow", "apply", *files, "--if-revision", 1, "--json")
    assert refused.exit_code == 2
    assert [row["error"] for row in json.loads(refused.stdout)] == [
        "--if-revision goes with one file: apply the files one by one"
    ] * 2
    shell.cut = True
    away = shell.run("flow", "apply", *files, "--json")
    assert away.exit_code == 4
    rows = json.loads(away.stdout)
    assert [(row["flow"], row["revision"]) for row in rows] == [("a", None), ("b", None)]
    assert all("did not answer" in row["error"] for row in rows)


def test_a_flow_with_a_damaged_text_gets_the_new_one_and_a_damaged_flow_is_refused(
    store: FakeStore,
) -> None:
    apply_flow(Operator(store, *SIGN), text("a"))
    apply_flow(Operator(store, *SIGN), text("b"))
    spoil(store, "/flows/a/revisions/1")
    assert apply_flow(Operator(store, *SIGN), text("a")).revision == 2
    spoil(store, "/flows/b")
    with pytest.raises(RefusedError, match="flow b cannot be read"):
        apply_flow(Operator(store, *SIGN), text("b"))


def spoil(store: FakeStore, path: str) -> None:
    store.tree.znodes[path].data = b"damaged"


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """A FIFO has no end until somebody writes, and /dev/zero has none at all."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(FlowFilesError) as refused:
            read_flows([path])
        ((_, problem),) = refused.value.problems
        assert ("regular file" in problem.message) or ("directory" in problem.message)


def test_no_more_is_read_of_a_file_than_a_flow_may_have(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FlowFilesError, match="is larger than 128 KiB"):
        read_flows([huge])


LAKE = """flow: web
sources: [tail: {{paths: [/a]}}]
delivery: {delivery}
place: {{collect: {{labels: {labels}}}}}
sinks: [files: {{path: {path}{more}}}]
"""


def lake(
    delivery: str = "exactly-once", labels: str = "{}", path: str = "/l", more: str = ""
) -> str:
    return LAKE.format(delivery=delivery, labels=labels, path=path, more=more)


def add_node(store: FakeStore, name: str, roles: tuple[str, ...] = ("collect",)) -> None:
    node = records.Node(uuid=name, roles=roles, labels={"host": name})
    store.write(paths.node(name), node, ABSENT)


def test_a_local_path_is_refused_where_several_hosts_may_collect(store: FakeStore) -> None:
    add_node(store, "n1")
    add_node(store, "n2", roles=("ingest",))
    apply_flow(Operator(store, *SIGN), lake())
    add_node(store, "n3")
    assert not apply_flow(Operator(store, *SIGN), lake()).changed
    with pytest.raises(RefusedError, match=r"/l on the disk .* 2 hosts may \(n1, n3\).*shared"):
        apply_flow(Operator(store, *SIGN), f"{lake()}# changed\n")
    for allowed in (
        lake(more=", shared: true"),
        lake(path="s3://b/l"),
        lake(delivery="at-least-once"),
        lake(labels="{host: n3}"),
    ):
        assert apply_flow(Operator(store, *SIGN), allowed).changed
    with pytest.raises(RefusedError, match=r"/l on the disk .* 2 hosts may \(n1, n3\)"):
        rollback_flow(Operator(store, *SIGN), "web", 1)
    assert rollback_flow(Operator(store, *SIGN), "web", 2).changed


def test_local_path_with_two_collectors_is_wrong_input(store: FakeStore, tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        add_node(store, name)
    file = tmp_path / "web.yaml"
    file.write_text(lake())
    refused = Shell(store.tree).run("flow", "apply", file)
    assert refused.exit_code == 2
    assert "shared: true" in refused.stderr


def test_rollback_is_refused_when_the_tree_is_upgraded_meanwhile(store: FakeStore) -> None:
    """The new tree may want folders of a flow that the rollback does not make."""
    apply_flow(Operator(store, *SIGN), lake())
    apply_flow(Operator(store, *SIGN), f"{lake()}# changed\n")

    class Upgraded(FakeStore):
        def commit(self, writes: Sequence[Write]) -> list[Version]:
            schema = store.read(paths.schema())
            assert schema is not None
            store.write(paths.schema(), schema.value, schema.version)
            return super().commit(writes)

    with pytest.raises(ConflictError, match="/schema"):
        rollback_flow(Operator(Upgraded(store.tree), *SIGN), "web", 1)
    found = store.read(paths.flow("web"))
    assert found is not None
    assert found.value.revision == 2


def test_status_names_a_local_path_that_several_hosts_write_to(store: FakeStore) -> None:
    add_node(store, "n1")
    apply_flow(Operator(store, *SIGN), lake())
    planned = {
        f"collect.{n}": records.PlannedTask(
            kind="collect", node=f"n{n}", epoch=1, state="assigned", partitions=()
        )
        for n in (1, 2)
    }
    store.write(paths.plan("web"), records.Plan(tasks=planned), ABSENT)
    said = [cause["what"] for cause in Shell(store.tree).json("status")["causes"]]
    assert any("web is collected on n1, n2 into /l" in one for one in said)
    apply_flow(Operator(store, *SIGN), lake(more=", shared: true"))
    said = [cause["what"] for cause in Shell(store.tree).json("status")["causes"]]
    assert not any("into /l" in one for one in said)


def test_objects_on_a_hosts_own_disk_are_read_by_one_host(store: FakeStore) -> None:
    text = "flow: web\nsources: [objects: {{paths: [/in/*]{more}}}]\nsinks: [noop]\n"
    add_node(store, "n1")
    apply_flow(Operator(store, *SIGN), text.format(more=""))
    add_node(store, "n2")
    with pytest.raises(RefusedError, match=r"reads /in/\* on the disk .* 2 hosts may \(n1, n2\)"):
        apply_flow(Operator(store, *SIGN), text.format(more=", lanes: 2"))
    apply_flow(Operator(store, *SIGN), text.format(more=", shared: true"))
