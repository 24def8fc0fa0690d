"""Dead letters in a store of objects are listed, replayed and purged as those on a disk are."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from flumeng.config import check_flow
from flumeng.connectors.api.dead_letter_columns import ADDED
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.dead_letters.finder import DeadLettersFinder
from flumeng.connectors.dead_letters.options import DeadLettersSource
from flumeng.connectors.dead_letters.reader import DeadLettersReader
from flumeng.connectors.files import formats
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import tree
from flumeng.platform.file_store import open_store
from flumeng.platform.options.locations import Credentials, located
from tests.testkit.command_line import Shell
from tests.testkit.servers.s3 import RealS3
from tests.testkit.store import FakeStore
from zkschema import paths

KEYS = Credentials(access_key="${secret:lake-id}", secret_key="${secret:lake-key}")
DEAD_LETTERS = pa.schema([pa.field("body", pa.binary()), pa.field("seq", pa.int64()), *ADDED])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3]:
    server = RealS3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


def letter(seq: int) -> dict[str, Any]:
    return {
        "body": b"%d" % seq,
        "seq": seq,
        "dead_reason": "no",
        "dead_place": f"sinks[{seq % 2}].http",
        "dead_revision": 1,
        "dead_time": datetime(2026, 11, 22, tzinfo=UTC),
    }


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_dead_letters_in_an_object_store_are_listed_replayed_and_purged(
    server: RealS3, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_ID", server.access_key)
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", server.secret_key)
    path = server.location(uuid.uuid4().hex)
    text = f"""
flow: web
sources: [tail: {{paths: [/a]}}]
sinks: [noop]
dead_letters:
  files:
    path: "{path}"
    format: {form}
    credentials: {{access_key: "${{secret:lake-id}}", secret_key: "${{secret:lake-key}}"}}
"""
    cluster = FakeStore()
    tree.init(cluster)
    apply_flow(Operator(cluster, "", "", 0.0), text)
    store, root = open_store(located(path, KEYS))
    for first in (0, 4):
        name = f"part-{uuid.uuid4().hex}{formats.ending(form, 'zstd')}"
        writer = formats.create(store.open_output(f"{root}/{name}"), DEAD_LETTERS, form, "zstd")
        writer.write(pa.Table.from_pylist([letter(first + n) for n in range(4)], DEAD_LETTERS))
        writer.close()

    def run(*words: str) -> str:
        done = Shell(cluster.tree).run("flow", "dead", words[0], "web", *words[1:])
        assert done.exit_code == 0, done.stderr
        return str(done.stdout)

    assert json.loads(run("list", "--json"))["letters"] == 8
    run("replay", "--place", "sinks[1]")
    found = cluster.read(paths.revision("web-replay-1", "1"))
    assert found is not None
    options = check_flow(found.value.text).sources[0].options
    assert isinstance(options, DeadLettersSource)
    reader = DeadLettersReader.of(options)
    monkeypatch.delenv(
        "FLUMENG_SECRET_LAKE_KEY"
    )  # an executor only has the secrets that it is given
    ((name, rows),) = options.partitions().items()
    events = [
        event for batch in reader.read(Range(name, 0, rows), "") for event in batch.to_pylist()
    ]
    assert sorted(event["body"] for event in events) == [b"1", b"3", b"5", b"7"]
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", server.secret_key)
    DeadLettersFinder(options).finished()
    assert json.loads(run("purge", "--replayed", "--yes", "--json"))["rewritten"] == 2
    left = [json.loads(line)["seq"] for line in run("show", "--json").splitlines()]
    assert sorted(left) == [0, 2, 4, 6]
    run("purge", "--yes")
    assert json.loads(run("list", "--json"))["files"] == 0
