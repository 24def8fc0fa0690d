"""``flow backfill``: a flow of its own reads a part of Kafka's messages once more, and ends."""

from __future__ import annotations

from typing import Any

import pytest

from flumeng.config import FlowSpec, check_flow
from flumeng.config.derived_texts import offsets_text
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.control.commands.derived_flows import free_name
from flumeng.control.commands.flows import apply_flow, apply_flows, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.cluster import come_live, new_cluster
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

TEXT = """\
# what people bought
flow: orders
labels: {team: shop}
sources:
  - kafka:
      brokers: ["127.0.0.1:9092"]
      topics: [orders, payments]
      start_from: latest
      password: "no"
      user: "${secret:kafka}"
delivery: exactly-once
sinks:
  - files: {path: s3://lake/orders, format: json}
"""
NINE = "2026-11-22T09:00:00+00:00"
KEPT = {
    "orders.0.MkTRfQ2n@kafka": {"earliest": 100, "latest": 900, NINE: 500},
    "orders.1.MkTRfQ2n@kafka": {"earliest": 0, "latest": 80, NINE: 80},
    "payments.0.Ab_-fQ2n@kafka": {"earliest": 7, "latest": 7, NINE: 7},
}


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    apply(store, TEXT.replace('      password: "no"\n      user: "${secret:kafka}"\n', ""))
    come_live(store, "n1", discovery="n1:2")
    task = records.PlannedTask(kind="discover", node="n1", epoch=1, state="assigned")
    store.write(paths.plan("orders"), records.Plan(epoch=1, tasks={"discover.0": task}), ABSENT)
    found = records.Partitions(partitions=dict.fromkeys(KEPT, records.Partition()))
    store.write(paths.partitions("orders"), found, ABSENT)
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    return Shell(store.tree, kept=dict(KEPT))


def apply(store: FakeStore, text: str) -> None:
    apply_flow(Operator(store, "ann", "", 0.0), text)


def options(store: FakeStore, flow: str) -> KafkaSource:
    found = store.read(paths.revision(flow, "1"))
    assert found is not None
    (source,) = check_flow(found.value.text).sources
    assert isinstance(source.options, KafkaSource)
    return source.options


def start(shell: Shell, *words: str) -> Any:
    return shell.run("flow", "backfill", "orders", *words)


def test_backfill_is_a_flow_of_its_own_with_the_same_text_and_ends(
    shell: Shell, store: FakeStore
) -> None:
    before = store.read(paths.flow("orders"))
    done = start(shell, "--from", "2026-11-22T09:00:00Z", "--to", "latest", "--reason", "late")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "PARTITION\tFROM\tTO\tEVENTS",
        "orders.0.MkTRfQ2n@kafka\t500\t900\t400",
        "flow orders-backfill-1 reads 400 events in 1 partition",
    ]
    record = store.read(paths.flow("orders-backfill-1"))
    assert record is not None
    assert record.value == records.Flow(revision=1, backfill_of="orders")
    assert store.read(paths.flow("orders")) == before
    made = options(store, "orders-backfill-1")
    assert (made.start_offsets, made.end_offsets, made.start_from) == (
        {"orders.0": 500},
        {"orders.0": 900},
        "earliest",
    )
    live, fill = (store.read(paths.revision(name, "1")) for name in ("orders", "orders-backfill-1"))
    assert live is not None
    assert fill is not None
    one, other = check_flow(live.value.text), check_flow(fill.value.text)
    assert (one.sinks, one.delivery, one.labels) == (other.sinks, other.delivery, other.labels)
    assert (fill.value.author, fill.value.reason) == ("ann@ops", "backfill of orders: late")
    names = store.children(paths.audits())
    entries = store.read_many([paths.audit(name) for name in names])
    assert [one.value.command for one in entries if one and one.value.reason == "late"] == [
        "flow backfill orders as orders-backfill-1: orders.0 500-900"
    ]


def test_whole_flow_is_backfilled_from_its_beginning_to_now(shell: Shell, store: FakeStore) -> None:
    found = shell.json("flow", "backfill", "orders", "--from", "earliest", "--to", "latest",
                       "--as", "again")  # fmt: skip
    assert found == {
        "flow": "again",
        "backfill_of": "orders",
        "partitions": [
            {"partition": "orders.0.MkTRfQ2n@kafka", "start": 100, "end": 900, "events": 800},
            {"partition": "orders.1.MkTRfQ2n@kafka", "start": 0, "end": 80, "events": 80},
        ],
    }
    assert options(store, "again").end_offsets == {"orders.0": 900, "orders.1": 80}


def test_offsets_select_the_backfilled_partition(shell: Shell, store: FakeStore) -> None:
    assert start(shell, "--from", "orders.0=200", "--to", "orders.0=300").exit_code == 0
    assert options(store, "orders-backfill-1").start_offsets == {"orders.0": 200}
    assert start(shell, "--from", "orders.1=10", "--to", "latest").exit_code == 0
    assert options(store, "orders-backfill-2").end_offsets == {"orders.1": 80}
    assert start(shell, "--from", "earliest", "--to", "orders.1=10").exit_code == 0
    assert options(store, "orders-backfill-3").start_offsets == {"orders.1": 0}


def test_generated_name_of_a_backfill_is_not_too_long(store: FakeStore) -> None:
    assert len(free_name(store, "o" * 63, "backfill")) <= 63


def test_a_dry_run_changes_nothing(shell: Shell, store: FakeStore) -> None:
    before = store.dump()
    done = start(shell, "--from", "earliest", "--to", "latest", "--dry-run")
    assert (done.exit_code, store.dump()) == (0, before)
    assert done.stdout.splitlines()[-1] == (
        "flow orders-backfill-1 would read 880 events in 2 partitions"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("latest", "latest"), "no partition has anything between --from and --to"),
        (("orders.0=200", "orders.1=20"), "is only in one of --from and --to: name it in both"),
        (("orders.0=5", "latest"), "has no offset 5: expected 100 to 900"),
        (("orders.9=5", "latest"), 'there is no partition "orders.9"'),
        (("monday", "latest"), "expected earliest, latest, or a time"),
    ],
)
def test_invalid_bounds_are_wrong_input(
    shell: Shell, store: FakeStore, words: tuple[str, str], complaint: str
) -> None:
    before = store.dump()
    done = start(shell, "--from", words[0], "--to", words[1])
    assert (done.exit_code, complaint in done.stderr, store.dump()) == (2, True, before)


def test_existing_or_invalid_backfill_name_is_refused(shell: Shell, store: FakeStore) -> None:
    range_ = ("--from", "earliest", "--to", "latest")
    assert start(shell, *range_, "--as", "orders").exit_code == 3
    assert start(shell, *range_, "--as", "Orders").exit_code == 2
    assert start(shell, *range_).exit_code == 0
    shell.run("flow", "delete", "orders-backfill-1")
    for path in sorted(store.tree.znodes, reverse=True):
        if "orders-backfill-1" in path and not path.startswith("/tombstones"):
            del store.tree.znodes[path]
    assert "orders-backfill-2 reads" in start(shell, *range_).stdout, "its history can be read"


def test_flow_with_journals_only_cannot_be_backfilled(shell: Shell, store: FakeStore) -> None:
    apply(store, "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n")
    done = shell.run("flow", "backfill", "web", "--from", "earliest", "--to", "latest")
    assert (done.exit_code, "`flumeng flow reset web`" in done.stderr) == (2, True)
    assert "retain_seconds" in done.stderr


def test_list_and_show_name_the_origin_and_completion_of_a_backfill(
    shell: Shell, store: FakeStore
) -> None:
    start(shell, "--from", "earliest", "--to", "latest")
    name = "orders-backfill-1"
    assert [row["backfill_of"] for row in shell.json("flow", "list")] == ["", "orders"]
    assert f"{name}\trunning" in shell.run("flow", "list").stdout
    assert shell.json("flow", "show", name)["backfill"] == {
        "of": "orders", "left": None, "done": False,
    }  # fmt: skip
    own = {
        "orders.0.MkTRfQ2n@kafka": records.Partition(start=100, end=900),
        "orders.1.MkTRfQ2n@kafka": records.Partition(start=0, end=80),
    }
    store.write(paths.partitions(name), records.Partitions(partitions=own), ABSENT)
    ack = paths.ack(name, "main", "orders.0.MkTRfQ2n@kafka")
    store.write(ack, records.Ack(epoch=1, offset=890), ABSENT)
    assert "it is a backfill of flow orders: 90 events left" in (
        shell.run("flow", "show", name).stdout
    )
    store.write(ack, records.Ack(epoch=1, offset=900), ANY)
    store.write(
        paths.ack(name, "main", "orders.1.MkTRfQ2n@kafka"), records.Ack(epoch=1, offset=80), ABSENT
    )
    assert shell.json("flow", "show", name)["backfill"]["done"] is False
    set_flow_state(Operator(store, "discovery", "all is read", 0.0), name, "stopped")
    shown = shell.run("flow", "show", name).stdout
    assert f"flow {name} is stopped\n" in shown
    assert "it is a backfill of flow orders: done" in shown
    assert shell.json("flow", "show", "orders")["backfill"] is None


def test_text_of_a_flow_is_kept_as_written_in_its_backfill() -> None:
    text = """
flow: both
sources:
  - tail: {paths: [/a]}
  - kafka: {brokers: ["b:1"], topics: [orders], client_id: "0123", start_offsets: {orders.0: 1}}
filters:
  - where: "host = 'no'"
sinks:
  - noop
  - files: {path: /data/no, format: json}
labels: {team: no, number: 012}
"""
    made = check_flow(offsets_text(text, "fill", {"orders.0": (5, 9), "orders.3": (0, 2)}))
    kafka: Any
    (kafka,) = (source.options for source in made.sources)
    assert (kafka.client_id, kafka.start_offsets, kafka.end_offsets) == (
        "0123",
        {"orders.0": 5, "orders.3": 0},
        {"orders.0": 9, "orders.3": 2},
    )
    assert made.labels == {"team": "no", "number": "012"}
    assert (made.filters, made.sinks) == (check_flow(text).filters, check_flow(text).sinks)


@pytest.mark.slow
def test_exit_codes_and_backfills_of_many_flows(shell: Shell, store: FakeStore) -> None:
    range_ = ("--from", "earliest", "--to", "latest")
    texts = {f"f{n}": f"flow: f{n}\nsources: [tail: {{paths: [/a]}}]\nsinks: [noop]\n"
             for n in range(1000)}  # fmt: skip
    list(apply_flows(Operator(store, "a", "", 0.0), texts))
    store.tree.znodes[str(paths.flow("f7"))].data = b"{"
    assert start(shell, *range_).exit_code == 0
    assert shell.run("flow", "backfill", "order", *range_).exit_code == 2
    store.remove(paths.live_node("n1"), ANY)
    away = start(shell, *range_)
    assert (away.exit_code, "is not running" in away.stderr) == (4, True)


OBJECTS = """\
flow: files
sources:
  - objects: {paths: [/in/*.log], after: move, move_to: /done, order: name}
{more}sinks:
  - files: {path: s3://lake/files, format: json}
"""


def test_objects_are_backfilled_by_their_modification_time_and_stay(
    shell: Shell, store: FakeStore
) -> None:
    apply(store, OBJECTS.replace("{more}", ""))
    found = shell.run("flow", "backfill", "files", "--from", NINE, "--to", "latest")
    now = "2023-11-14T22:13:20+00:00"
    assert found.stdout == (
        f"flow files-backfill-1 reads objects written from {NINE} until {now}\n"
    )
    (source,) = made(store, "files-backfill-1").sources
    options = source.options
    assert isinstance(options, ObjectsSource)
    assert (options.written_from, options.written_before) == (NINE, now)
    assert (options.after, options.move_to, options.paths) == ("keep", None, ("/in/*.log",))


def test_paths_option_limits_a_backfill_of_objects(shell: Shell, store: FakeStore) -> None:
    kafka = "  - kafka: {brokers: ['h:1'], topics: [t]}\n"
    apply(store, OBJECTS.replace("{more}", kafka))
    every = ("flow", "backfill", "files", "--from", "earliest", "--to", NINE, "--path", "/in/a*")
    shell.run(*every)
    (source,) = made(store, "files-backfill-1").sources
    assert isinstance(source.options, ObjectsSource)
    assert source.options.paths == ("/in/a*",)
    assert source.options.written_from is None
    dry = shell.run(*every, "--dry-run", "--as", "other")
    assert dry.stdout == f"flow other would read objects written until {NINE} at /in/a*\n"
    assert store.read(paths.flow("other")) is None


@pytest.mark.parametrize(
    ("flow", "options", "why"),
    [
        ("files", ("--from", "a.1=3", "--to", "latest"), "objects have no offsets"),
        ("files", ("--from", "latest", "--to", "latest"), "expected earliest or a time"),
        ("orders", ("--from", "earliest", "--to", "latest", "--path", "/x"), "reads no objects"),
    ],
)
def test_impossible_backfill_of_objects_is_refused(
    shell: Shell, store: FakeStore, flow: str, options: tuple[str, ...], why: str
) -> None:
    apply(store, OBJECTS.replace("{more}", ""))
    found = shell.run("flow", "backfill", flow, *options)
    assert found.exit_code == 2
    assert why in found.stderr


def made(store: FakeStore, flow: str) -> FlowSpec:
    revision = store.read(paths.revision(flow, "1"))
    assert revision is not None
    return check_flow(revision.value.effective)
