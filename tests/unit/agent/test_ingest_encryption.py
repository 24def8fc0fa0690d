"""The journals of a flow that are encrypted: from key to key, and without the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.agent.ingest import flow as flow_journal
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.config import FlowSpec, parse_flow
from flumeng.journal.log import reading
from flumeng.journal.log.encryption import Key
from flumeng.journal.log.errors import KeyMissingError
from flumeng.platform.errors import FlumengError, UserError
from flumeng.platform.options.problems import SpecError
from tests.testkit.journal import numbered_events

A, B = "0a" * 32, "0b" * 32


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_KEY_A", A)
    monkeypatch.setenv("FLUMENG_SECRET_KEY_B", B)


def flow(encryption: str = "", *, more: str = "", durability: str = "disk") -> FlowSpec:
    """``encryption`` is the YAML of the flow's option."""
    journal = f"journal: {{encryption: {{{encryption}}}{more}}}\n" if encryption else ""
    return parse_flow(
        f"flow: web\ndurability: {durability}\nsources: [syslog: {{listen: '127.0.0.1:0'}}]\n"
        f"{journal}sinks: [files: {{path: /data/web}}]\n"
    )


def use(store: JournalStore, spec: FlowSpec, first: int, count: int = 20) -> str:
    """Take the flow's journal, append and give it back; returns its id."""
    taken = flow_journal.take(store, "web", spec)
    journal = taken.appendable
    journal.append_encoded(journal.encode(numbered_events(first, count), {"app.log": first}))
    journal.sync()
    assert taken.fits(spec)
    taken.give_back(0, failed=False)
    return journal.id


def bodies(store: JournalStore, name: str) -> list[int]:
    journal = store.journals[name]
    windows = journal.read_frames(journal.floor, journal.safe)
    frames = (frame for window in windows for frame in window)
    parts = reading.cut(frames, name, journal.floor, journal.safe)
    return [int(body.rstrip(b".")) for _, batch in parts for body in batch["body"].to_pylist()]


def test_a_flow_goes_on_in_its_encrypted_journal_after_a_restart(tmp_path: Path) -> None:
    spec = flow("key: '${secret:key-a}'")
    store = JournalStore(tmp_path, "n1")
    name = use(store, spec, 0)
    store.close()
    again = JournalStore(tmp_path, "n1")
    assert use(again, spec, 20) == name
    assert bodies(again, name) == list(range(40))
    again.close()


def test_a_new_key_is_for_a_new_journal_and_the_old_one_stays_readable(tmp_path: Path) -> None:
    store = JournalStore(tmp_path, "n1")
    first = use(store, flow("key: '${secret:key-a}'"), 0)
    rotated = flow("key: '${secret:key-b}', previous_keys: ['${secret:key-a}']")
    second = use(store, rotated, 20)
    assert second != first
    assert store.journals[first].closed
    assert (bodies(store, first), bodies(store, second)) == ([*range(20)], [*range(20, 40)])
    assert store.journals[second].cipher.key_id == Key.parse(B, "").id
    assert store.journals[second].state["app.log"] == 20
    assert use(store, rotated, 40) == second
    store.close()


def test_changed_secret_value_is_a_new_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do vaults rotate. The old value has to be somewhere."""
    store = JournalStore(tmp_path, "n1")
    spec = flow("key: '${secret:key-a}'")
    first = use(store, spec, 0)
    monkeypatch.setenv("FLUMENG_SECRET_KEY_A", B)
    monkeypatch.setenv("FLUMENG_SECRET_KEY_B", A)
    with pytest.raises(KeyMissingError, match=r"key-a} is key .* `previous_keys`"):
        flow_journal.take(store, "web", spec)
    rotated = flow("key: '${secret:key-a}', previous_keys: ['${secret:key-b}']")
    second = use(store, rotated, 20)
    assert (bodies(store, first), bodies(store, second)) == ([*range(20)], [*range(20, 40)])
    store.close()


@pytest.mark.parametrize("wrong", ["key-b", "nowhere"])
def test_wrong_key_fails_the_source_and_changes_no_file(tmp_path: Path, wrong: str) -> None:
    store = JournalStore(tmp_path, "n1")
    spec = flow("key: '${secret:key-a}'")
    name = use(store, spec, 0)
    directory = store.path / "0" / name
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(FlumengError, match=r"there is no secret nowhere|previous_keys"):
        flow_journal.take(store, "web", flow(f"key: '${{secret:{wrong}}}'"))
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert list(store.journals) == [name]
    assert use(store, spec, 20) == name
    assert bodies(store, name) == list(range(40))
    store.close()


def test_invalid_key_fails_the_source_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_KEY_A", "hunter2-hunter2")
    store = JournalStore(tmp_path, "n1")
    with pytest.raises(UserError, match="is not a key for a journal") as refused:
        flow_journal.take(store, "web", flow("key: '${secret:key-a}'"))
    assert "hunter2" not in str(refused.value)
    assert not store.journals
    store.close()


def test_change_to_or_from_plain_text_takes_another_journal(tmp_path: Path) -> None:
    store = JournalStore(tmp_path, "n1")
    names = [
        use(store, flow(), 0),
        use(store, flow("key: '${secret:key-a}'"), 20),
        use(store, flow(), 40),
    ]
    assert len(set(names)) == 3
    assert [bodies(store, name)[0] for name in names] == [0, 20, 40]
    store.close()


@pytest.mark.parametrize("durability", ["memory", "spill", "disk"])
def test_no_body_gets_onto_the_disk_with_any_durability(tmp_path: Path, durability: str) -> None:
    spec = flow("key: '${secret:key-a}'", durability=durability)
    store = JournalStore(tmp_path, "n1")
    taken = flow_journal.take(store, "web", spec)
    journal = taken.appendable
    journal.append_encoded(journal.encode(numbered_events(0, 20, 60), {"app.log": 7}))
    journal.sync()
    store.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert b"......" not in path.read_bytes(), path.name
    again = JournalStore(tmp_path, "n1")
    assert bodies(again, journal.id) == list(range(20))
    again.close()


def test_journals_of_a_removed_flow_are_served_without_its_spec(tmp_path: Path) -> None:
    """A worker that starts again finds the secrets' names in the journal's directory."""
    store = JournalStore(tmp_path, "n1")
    name = use(store, flow("key: '${secret:key-a}'"), 0)
    store.close()
    again = JournalStore(tmp_path, "n1")
    again.close_all_but(frozenset())
    assert again.journals[name].closed
    assert bodies(again, name) == list(range(20))
    again.close()


def test_flow_names_its_key_by_reference_only() -> None:
    with pytest.raises(SpecError, match="expected a reference to a secret"):
        flow(f"key: '{A}'")
    with pytest.raises(SpecError, match="expected a reference to a secret"):
        flow(f"key: '${{secret:a}}', previous_keys: ['{A}']")
    with pytest.raises(SpecError, match="expected only keys that differ from `key`"):
        flow("key: '${secret:a}', previous_keys: ['${secret:a}']")
    with pytest.raises(SpecError, match="a journal in Kafka cannot be encrypted"):
        flow("key: '${secret:a}'", more=", kafka: {brokers: ['k:9092'], topic: t}")
