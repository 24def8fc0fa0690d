"""The table, the codec and the checks of a tree."""

from __future__ import annotations

import gzip
import random
import uuid

import pytest

from flumeng.control.snapshot.assignment_pages import INLINE_ITEMS
from zkschema import bootstrap, codec, paths, records, table
from zkschema.verify import verify


def test_a_path_is_spelled_from_the_table() -> None:
    assert str(paths.ack("web", "main", "web.n1.0.ab")) == "/acks/web/main/web.n1.0.ab"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 201, "a\x00"])
def test_name_that_cannot_be_a_znode_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected 1 to 200 letters, digits and any of"):
        paths.flow(name)


def test_row_is_found_by_its_own_path_only() -> None:
    for row in table.ROWS:
        names = ["x1"] * row.pattern.count("{")
        assert table.find(str(row(*names))) is row


def test_parent_folders_of_every_row_are_in_the_table() -> None:
    patterns = {row.pattern for row in table.ROWS}
    parents = {pattern.rpartition("/")[0] for pattern in patterns} - {""}
    assert parents <= patterns


def test_a_record_survives_the_round_trip() -> None:
    plan = records.Plan(
        tasks={
            "c0": records.PlannedTask(
                kind="collect", node="n1", epoch=3, state="assigned", partitions=("a", "b")
            )
        }
    )
    assert codec.decode(records.Plan, codec.encode(plan)) == plan


def test_equal_records_encode_to_equal_bytes() -> None:
    one = records.Node(uuid="u", roles=("ingest",), labels={"a": "1", "b": "2"})
    two = records.Node(uuid="u", roles=("ingest",), labels={"b": "2", "a": "1"})
    assert codec.encode(one) == codec.encode(two)


def test_equal_large_records_encode_to_equal_bytes_at_any_time() -> None:
    data = codec.encode(records.Revision(text="a" * 9000, author="a", reason="", time=1.0))
    assert data.startswith(codec.GZIP_MAGIC)
    assert data[4:8] == bytes(4), "gzip's header has no time"


def test_unknown_fields_are_kept_at_every_depth() -> None:
    data = (
        b'{"assignment_version":1,"journals_told":true,"new":1,"problems":{},"spark_ui":"",'
        b'"tasks":{"f/t":{"epoch":1,'
        b'"epoch_seen":0,"health":"","newer":[2],"revision":1,"state":"running"}},"v":1}'
    )
    assert codec.encode(codec.decode(records.NodeStatus, data)) == data


def test_optional_fields_are_written_only_when_set() -> None:
    assert codec.encode(records.Ack(epoch=1, offset=2)) == b'{"epoch":1,"offset":2,"v":1}'
    joined = records.Joined(offset=2, emitted=5, rules="r")
    set_ = records.Ack(epoch=1, offset=2, joined=joined)
    assert codec.decode(records.Ack, codec.encode(set_)) == set_
    told = b'{"epoch":1,"joined":null,"offset":2,"v":1}'
    assert codec.decode(records.Ack, told) == records.Ack(epoch=1, offset=2)
    change = records.ResourceChange(before=None, after="a", owned_before=None)
    assert b'"before":null' in codec.encode(change), "there it says that it was not there"


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(codec.NewerVersionError, match="Ack record: it has format version 2"):
        codec.decode(records.Ack, b'{"v":2,"epoch":1,"offset":0}')


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "expected a JSON object"),
        (b'{"epoch":1,"offset":0}', 'its format version "v" is missing or not a positive'),
        (b'{"v":"1","epoch":1,"offset":0}', 'version "v" is missing or not a positive integer'),
        (b'{"v":true,"epoch":1,"offset":0}', 'version "v" is missing or not a positive integer'),
        (b'{"v":-1,"epoch":1,"offset":0}', 'version "v" is missing or not a positive integer'),
        (b'{"v":0,"epoch":1,"offset":0}', 'version "v" is missing or not a positive integer'),
        (b'{"v":1,"epoch":1}', "Ack.offset: the field is missing"),
        (b'{"v":1,"epoch":1,"offset":"7"}', "Ack.offset: expected int, got str"),
        (b'{"v":1,"epoch":true,"offset":7}', "Ack.epoch: expected int, got bool"),
    ],
)
def test_malformed_record_is_an_error_with_its_place(data: bytes, complaint: str) -> None:
    with pytest.raises(codec.DecodeError, match=complaint.replace("[", r"\[")):
        codec.decode(records.Ack, data)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
@pytest.mark.parametrize("place", ['"capacity":{"slots":%s}', '"unknown":[%s]'])
def test_infinite_numbers_are_refused(number: str, place: str) -> None:
    """Nothing that is computed with them would be, and no other JSON reader knows them."""
    data = ('{"v":1,"uuid":"u","roles":[],' + place % number + "}").encode()
    if number.isdigit() and "unknown" in place:
        assert codec.decode(records.Node, data)
        return
    with pytest.raises(codec.DecodeError, match=r"finite|too large"):
        codec.decode(records.Node, data)


def test_endlessly_nested_record_is_refused() -> None:
    data = b'{"v":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(codec.DecodeError, match="nested too deeply"):
        codec.decode(records.Node, data)


def test_record_is_not_unpacked_beyond_the_bound() -> None:
    data = gzip.compress(bytes(codec.UNPACKED_BYTES + 1), 1)
    with pytest.raises(codec.DecodeError, match="larger than 64 MiB when unpacked"):
        codec.unpack(data)


def test_verify_finds_each_kind_of_fault_and_nothing_in_a_good_tree() -> None:
    good = {str(p): codec.encode(r) if r else b"" for p, r in bootstrap.initial()}
    assert verify(good) == []
    bad = dict(good)
    del bad["/audit"]
    bad["/flows/web"] = b"{}"
    bad["/flows/web/strange"] = b""
    bad["/live"] = b"data"
    bad["/live/nodes/n"] = b"x" * 20_000
    assert [(problem.path, problem.what.split(":")[0]) for problem in verify(bad)] == [
        ("/audit", "missing"),
        ("/flows/web", "Flow record"),
        ("/flows/web/strange", "no such znode in the schema"),
        ("/live", "the data has 4 bytes, and at most 0 are allowed"),
        ("/live/nodes/n", "the data has 20000 bytes, and at most 16384 are allowed"),
    ]


def test_an_assignment_of_hosts_that_are_named_by_uuids_fits_into_its_znode() -> None:
    chance = random.Random(3)
    names = tuple(
        f"web-logs.{uuid.UUID(int=chance.getrandbits(128))}.0.{chance.getrandbits(32):08x}"
        for _ in range(INLINE_ITEMS)
    )
    task = records.AssignedTask(
        flow="web-logs", task="collect.0", kind="collect", epoch=1, revision=1, state="running",
        partitions=names,
    )  # fmt: skip
    assert len(codec.encode(records.Assignment(tasks=(task,)))) < paths.assignment.size_bytes


def test_a_status_of_many_failing_tasks_can_be_written() -> None:
    """Each error is text of which nothing repeats, the worst for gzip."""
    chance = random.Random(7)
    tasks = {
        f"flow-{number}/ingest.host-1": records.TaskStatus(
            epoch=number, revision=1, state="failed", error=chance.randbytes(4000).hex()
        )
        for number in range(2000)
    }
    status = records.NodeStatus(assignment_version=1, tasks=tasks)
    data = codec.encode(status)
    assert len(data) <= paths.status.size_bytes // 2
    back = codec.decode(records.NodeStatus, data).tasks
    for key, task in tasks.items():
        assert task.error is not None
        said = back[key].error
        assert said is not None
        assert said.endswith("...")
        assert task.error.startswith(said[:-3])


@pytest.mark.parametrize(
    "record",
    [
        records.NodeStatus(
            assignment_version=1,
            tasks={
                "f/t": records.TaskStatus(epoch=1, revision=1, state="failed", error="é" * 9000)
            },
        ),
        records.Flow(revision=1, went_back="é" * 9000),
    ],
)
def test_long_error_is_truncated_in_every_record(record: records.Record) -> None:
    text = codec.text_of(record)
    assert len(text.encode("ascii").decode("unicode_escape")) < records.ERROR_CHARACTERS + 300
    assert codec.text_of(codec.decode(type(record), codec.encode(record))) == text
