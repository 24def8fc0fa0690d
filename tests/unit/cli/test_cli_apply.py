"""``flumeng flow apply`` of many files: one transaction while it fits, and a report on each
file."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from random import Random

import pytest

from flumeng.config.document import MAX_BYTES
from flumeng.config.flow_files import FlowFilesError, read_flows
from flumeng.control.commands.flows import apply_flow, apply_flows, delete_flow, rollback_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import RefusedError
from flumeng.control.zookeeper import ABSENT, Store
from flumeng.platform.errors import ConflictError
from tests.testkit.cluster import add_journal
from tests.testkit.command_line import NOON, Shell
from tests.testkit.scripted_store import ScriptedStore, fail_at
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.verify import verify

FLOW = "flow: {name}\nsources: [tail: {{paths: [/a]}}]\nsinks: [noop]\n"
SIGN = ("ann", "", NOON)


def text(name: str) -> str:
    return FLOW.format(name=name)


def write(folder: Path, *names: str) -> list[Path]:
    files = [folder / f"{name}.yaml" for name in names]
    for file in files:
        file.write_text(text(file.stem))
    return files


def failing(store: FakeStore, error: type[Exception], at: int) -> Shell:
    losing = fail_at(at, error("somebody else was first"))

    class Failing(Shell):
        def connect(self, hosts: str) -> Store:  # noqa: ARG002  there is one
            return ScriptedStore(store.tree, before_commit=losing)

    return Failing(store.tree)


def padded(name: str) -> str:
    """A flow so long that a few fill a transaction."""
    noise = Random(name).randbytes(3 * (MAX_BYTES - 1000) // 4)
    return f"{text(name)}# {base64.b64encode(noise).decode()}"


def test_files_of_one_command_are_one_transaction_with_one_audit_entry(store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), text("f0"))
    counting = ScriptedStore(store.tree)
    audits = len(store.children(paths.audits()))
    texts = {f"f{number}": text(f"f{number}") for number in range(50)}
    unchanged, applied = apply_flows(Operator(counting, *SIGN), texts)
    assert [one.flow for one in unchanged] == ["f0"]
    assert [one.flow for one in applied] == [f"f{number}" for number in range(1, 50)]
    assert len(counting.transactions) == 1
    assert len(store.children(paths.audits())) == audits + 1
    assert verify(store.dump()) == []


@pytest.mark.slow
def test_a_thousand_flows_take_few_transactions_and_reads(store: FakeStore) -> None:
    counting = ScriptedStore(store.tree)
    texts = {f"f{number}": text(f"f{number}") for number in range(1000)}
    assert sum(map(len, apply_flows(Operator(counting, *SIGN), texts))) == 1000
    assert len(counting.transactions) <= 10
    assert sum(map(len, counting.listings)) <= 20


def test_one_refused_file_keeps_all_from_being_written(store: FakeStore, tmp_path: Path) -> None:
    apply_flow(Operator(store, *SIGN), text("b"))
    delete_flow(Operator(store, *SIGN), "b")
    add_journal(store, "c.n1.0.aa")
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


def test_failing_part_is_reported_with_the_files_applied_before(
    store: FakeStore, tmp_path: Path
) -> None:
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


def test_text_output_counts_applied_and_failed_files(store: FakeStore, tmp_path: Path) -> None:
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


def test_json_lists_the_files_for_any_error_of_the_command(
    store: FakeStore, tmp_path: Path
) -> None:
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


def test_damaged_text_is_replaced_by_apply_and_a_damaged_flow_is_refused(store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), text("a"))
    apply_flow(Operator(store, *SIGN), text("b"))
    spoil(store, "/flows/a/revisions/1")
    assert apply_flow(Operator(store, *SIGN), text("a")).revision == 2
    spoil(store, "/flows/b")
    with pytest.raises(RefusedError, match=r"flow b: /flows/b: .*: see `flumeng schema verify`"):
        apply_flow(Operator(store, *SIGN), text("b"))


def spoil(store: FakeStore, path: str) -> None:
    store.tree.znodes[path].data = b"damaged"


def test_file_that_is_not_regular_is_refused_at_once(tmp_path: Path) -> None:
    """A FIFO has no end until somebody writes, and /dev/zero has none at all."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(FlowFilesError) as refused:
            read_flows([path])
        ((_, problem),) = refused.value.problems
        assert ("regular file" in problem.message) or ("directory" in problem.message)


def test_oversized_flow_file_is_not_read(tmp_path: Path) -> None:
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


def test_local_path_is_refused_where_several_hosts_may_collect(store: FakeStore) -> None:
    add_node(store, "n1")
    add_node(store, "n2", roles=("ingest",))
    apply_flow(Operator(store, *SIGN), lake())
    add_node(store, "n3")
    assert not apply_flow(Operator(store, *SIGN), lake()).changed
    with pytest.raises(RefusedError, match=r"/l on the local .* 2 hosts may \(n1, n3\).*shared"):
        apply_flow(Operator(store, *SIGN), f"{lake()}# changed\n")
    for allowed in (
        lake(more=", shared: true"),
        lake(path="s3://b/l"),
        lake(delivery="at-least-once"),
        lake(labels="{host: n3}"),
    ):
        assert apply_flow(Operator(store, *SIGN), allowed).changed
    with pytest.raises(RefusedError, match=r"/l on the local .* 2 hosts may \(n1, n3\)"):
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

    def upgrade(_writes: object) -> None:
        schema = store.read(paths.schema())
        assert schema is not None
        store.write(paths.schema(), schema.value, schema.version)

    late = ScriptedStore(store.tree, before_commit=upgrade)
    with pytest.raises(ConflictError, match="/schema"):
        rollback_flow(Operator(late, *SIGN), "web", 1)
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


def test_objects_on_a_local_disk_are_read_by_one_host_only(store: FakeStore) -> None:
    text = "flow: web\nsources: [objects: {{paths: [/in/*]{more}}}]\nsinks: [noop]\n"
    add_node(store, "n1")
    apply_flow(Operator(store, *SIGN), text.format(more=""))
    add_node(store, "n2")
    with pytest.raises(RefusedError, match=r"reads /in/\* on the local .* 2 hosts may \(n1, n2\)"):
        apply_flow(Operator(store, *SIGN), text.format(more=", lanes: 2"))
    apply_flow(Operator(store, *SIGN), text.format(more=", shared: true"))
