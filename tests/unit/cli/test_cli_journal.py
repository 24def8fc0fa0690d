"""The offline tools as commands: their output and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from cli.main import tree
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.encryption import Keyring
from flumeng.journal.log.journal import Journal

ID = "web.n1.0.0a1b2c3d"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Four events in four frames; the second is not text, the third has bytes that clear a
    terminal."""
    journal = Journal.create(tmp_path, ID)
    for seq, body in enumerate([b"one", b"\xff\x00", b"\x1b[2J", b"four"]):
        columns = {"body": [body], "ts": [seq], "host": ["h"], "attrs": [[("k", "v\n")]]}
        journal.append(pa.RecordBatch.from_pydict(columns, schema=EVENT_SCHEMA))
    journal.close()
    return tmp_path / ID


def run(*words: object) -> Result:
    return CliRunner().invoke(
        tree, ["journal", *(str(word) for word in words)], catch_exceptions=False
    )


def damage(directory: Path) -> None:
    (segment,) = directory.glob("*.segment")
    data = bytearray(segment.read_bytes())
    at = data.index(b"\xff\x00", 200)
    data[at] ^= 1
    segment.write_bytes(data)


def test_dump_prints_each_event_as_json_safe_for_a_terminal(directory: Path) -> None:
    lines = run("dump", directory).stdout.splitlines()
    assert [json.loads(line).get("body") for line in lines] == ["one", None, "\x1b[2J", "four"]
    assert json.loads(lines[1])["body_base64"] == "/wA="
    assert "\x1b" not in "".join(lines)
    assert json.loads(lines[0]) == {
        "seq": 0,
        "ts": "1970-01-01T00:00:00+00:00",
        "host": "h",
        "body": "one",
    }
    (line,) = run("dump", directory, "--from", 2, "--to", 3, "--attrs").stdout.splitlines()
    assert (json.loads(line)["seq"], json.loads(line)["attrs"]) == (2, {"k": "v\n"})


def test_verify_of_an_undamaged_journal_succeeds(directory: Path) -> None:
    verified = run("verify", directory)
    assert verified.exit_code == 0
    assert verified.stdout == f"{ID} is sound: events 0 to 4\n"


def test_damage_is_reported_repaired_and_the_loss_accepted(directory: Path) -> None:
    damage(directory)
    verified = run("verify", directory)
    assert verified.exit_code == 1
    name = "00000000000000000000.segment"
    assert f"DAMAGE: {name} at byte 768: the payload's checksum does not match" in verified.stdout
    assert json.loads(run("verify", directory, "--json").stdout)["damaged"] is True

    dumped = run("dump", directory)
    assert dumped.exit_code == 1
    assert [json.loads(line)["seq"] for line in dumped.stdout.splitlines()] == [0, 2, 3]
    assert f"{name} at byte 768" in dumped.stderr

    repaired = run("repair", directory)
    assert repaired.exit_code == 0
    assert repaired.stdout.splitlines() == [
        "lost: events 1 to 2",
        f"kept as it was: {directory}/quarantine/{name}",
        f"{ID} opens again with events 0 to 4; it takes no more events",
        "readers stop at seq 1, since events are lost (in all 1); to skip these: "
        "flumeng journal repair --accept-loss",
    ]
    assert run("verify", directory).exit_code == 1, "the loss is not accepted"
    accepted = json.loads(run("repair", directory, "--accept-loss", "--json").stdout)
    assert (accepted["waits_at"], accepted["events"]) == (None, 1)
    verified = run("verify", directory)
    assert verified.exit_code == 0
    assert "note: checkpoint: lost events, of an accepted loss: 1" in verified.stdout


def test_journal_open_in_another_process_is_only_inspected(directory: Path) -> None:
    journal = Journal.open(directory)
    assert "a process has it open" in run("verify", directory).stderr
    assert len(run("dump", directory).stdout.splitlines()) == 4
    refused = run("repair", directory)
    assert (refused.exit_code, "in use by another process" in refused.stderr) == (2, True)
    journal.close()


@pytest.mark.parametrize("tool", ["verify", "dump", "repair"])
def test_directory_without_a_journal_is_wrong_input(tmp_path: Path, tool: str) -> None:
    assert run(tool, tmp_path).exit_code == 2
    assert run(tool, tmp_path / "not there").exit_code == 2


def test_a_key_is_given_by_reference_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "3f" * 31 + "a9"
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL", key)
    reference = "${secret:journal}"
    journal = Journal.create(tmp_path, ID, keyring=Keyring.resolve([reference]))
    columns = {"body": [b"one"], "ts": [0], "host": ["h"], "attrs": [[]]}
    journal.append(pa.RecordBatch.from_pydict(columns, schema=EVENT_SCHEMA))
    journal.close()
    directory = tmp_path / ID
    dumped = run("dump", directory, "--key", reference)
    assert json.loads(dumped.stdout)["body"] == "one"
    assert "note" not in run("verify", directory, "--key", reference).stdout
    locked = run("dump", directory)
    assert (locked.exit_code, locked.stdout) == (1, "")
    assert "events 0 to 1 are encrypted with key" in locked.stderr
    assert "which was not given: only its checksums are known" in run("verify", directory).stdout
    refused = run("dump", directory, "--key", key)
    assert (refused.exit_code, key in refused.output) == (2, False)
