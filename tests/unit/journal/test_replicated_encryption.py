"""Replicas of encrypted journals: frames as they are, no key while a replica follows, one when it
leads.

Protects that no event is in plain text on a replica's disk, that a replica that leads gives its
readers the taken events or nothing, and that it goes on once its key is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.key_search import KeySearch
from flumeng.journal.log.contract import Log
from flumeng.journal.log.encryption import Key, Keyring
from flumeng.journal.log.errors import KeyMissingError
from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.log.inspection import Finding, dump, inspect
from flumeng.journal.log.journal_cipher import FILE, JournalCipher, KeyReference
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.replication.messages import Begin
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import CorruptError, UnavailableError
from tests.testkit.journal import numbered_events
from tests.testkit.logs import tracebacks
from tests.unit.journal import test_replicas_protocol as replicas
from tests.unit.journal import test_replicas_store as stores
from tests.unit.journal.replicas_world import NAME, World, bodies, promote

REFERENCE, ELSEWHERE = "${secret:journal-key}", "${secret:journal-key-2026}"
KEY, OTHER = "0b" * 32, "a7" * 32
MARKER = b"." * 40
"""A part of the body of each event."""


def ring(text: str = KEY, reference: str = REFERENCE) -> Keyring:
    return Keyring({reference: Key.parse(text, reference)})


def text(journal: str) -> str:
    """A flow with this in its journal options."""
    return (
        "flow: web\ndurability: replicated\nsources: [syslog: {listen: '127.0.0.1:0'}]\n"
        f"journal: {{{journal}}}\nsinks: [noop]\n"
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world in which n1 leads, all are in sync, and no node has a secret."""
    world = World(tmp_path, ring())
    world.settle()
    assert len(world.in_sync) == 3
    yield world
    for site in world.sites.values():
        site.journal.close()


def take(journal: ReplicatedJournal, count: int = 10) -> int:
    start = journal.next_seq
    journal.append(numbered_events(start, count, 60), {"cursor": start + count})
    return journal.sync()


def raw(journal: ReplicatedJournal) -> list[bytes]:
    """The frames as bytes on the disk."""
    start = journal._journal.floor
    windows = journal.frames(start, journal.next_seq)
    return [frame.to_pybytes() for window in windows for frame in window]


def envelope_of(frame: bytes) -> tuple[bytes, int]:
    """The salt of a frame, and the counted part of its nonce."""
    envelope = frame[FrameHeader.unpack(frame, 0, identity(NAME)).message_offset :]
    return envelope[8:24], int.from_bytes(envelope[24:28], "big")


def nothing_is_in_plain_text(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".segment" for path in files)
    for path in files:
        data = path.read_bytes()
        assert MARKER not in data, path
        assert KEY.encode() not in data, path
        assert bytes.fromhex(KEY) not in data, path


def wait_for_key(journal: ReplicatedJournal) -> None:
    with pytest.raises(KeyMissingError):
        bodies(journal, 0, journal.safe)


# While it follows.


def test_replicas_have_the_bytes_of_the_primary_and_no_key(world: World, tmp_path: Path) -> None:
    for _ in range(3):
        take(world["n1"])
        world.settle()
    assert bodies(world["n1"], 0, 30) == list(range(30))
    for name in ("n2", "n3"):
        assert raw(world[name]) == raw(world["n1"])
        headers = [FrameHeader.unpack(frame, 0, identity(NAME)) for frame in raw(world[name])]
        assert all(header.encrypted for header in headers)
        assert world[name].cipher.reference == KeyReference.of(ring())
        assert world[name].cipher.lacks_key
    nothing_is_in_plain_text(tmp_path)


def test_each_frame_is_encrypted_once(world: World) -> None:
    """The nonce of a frame counts the encryptions under its salt."""
    take(world["n1"])
    take(world["n1"])
    world.settle()
    assert [world[name].next_seq for name in ("n1", "n2", "n3")] == [20, 20, 20]
    for name in ("n1", "n2", "n3"):
        sealed = [envelope_of(frame) for frame in raw(world[name])]
        assert len({salt for salt, _ in sealed}) == 1
        assert [count for _, count in sealed] == [0, 1]


def test_replicas_catch_up_and_restart_without_a_key(world: World, tmp_path: Path) -> None:
    """n3 lacks the events that were trimmed since."""
    take(world["n1"])
    world.settle()
    world.cut_off("n3")
    for seconds in (6.0, 6.0):
        world.look(seconds)
    assert world.in_sync == ["n1", "n2"]
    primary = world["n1"]
    for _ in range(3):
        take(primary)
        world.settle()
    primary._journal._writer.roll(40, dict(primary.state), use_spare=False)
    primary.trim(40)
    assert primary.floor == 40
    take(primary)
    world.away = set()
    primary.reconnected("n3")
    for _ in range(3):
        world.look(2.0)
    assert world.in_sync == ["n1", "n2", "n3"]
    assert (world["n3"].floor, world["n3"].next_seq) == (40, 50)
    assert (tmp_path / "n3" / NAME / FILE).exists()
    assert raw(world["n3"]) == raw(primary)
    nothing_is_in_plain_text(tmp_path / "n3")


def test_replica_refuses_events_in_plain_text(world: World, tmp_path: Path) -> None:
    """Of any primary without the key, or a false one."""
    take(world["n1"])
    world.settle()
    plain = ReplicaJournal.make(tmp_path / "x", NAME, Replica.new("x", "l"), term=world["n1"].term)
    plain.append(numbered_events(0, 10, 60))
    plain.append(numbered_events(10, 10, 60))
    plain.sync()
    _, frame = (frame for window in plain.written_frames(0, 20) for frame in window)
    replica = world["n2"]._journal
    with pytest.raises(CorruptError, match="is in plain text, but all are encrypted"):
        replica.append_frame(frame)
    assert replica.next_seq == 10
    nothing_is_in_plain_text(tmp_path / "n2")
    with pytest.raises(AssertionError):  # it would be seen
        nothing_is_in_plain_text(tmp_path / "x")
    plain.close()


def test_replica_keeps_its_first_key(world: World, tmp_path: Path) -> None:
    """Or its events could not be read with either."""
    file = tmp_path / "n2" / NAME / FILE
    before = file.read_bytes()
    other = KeyReference.of(ring(OTHER))
    assert other is not None
    with pytest.raises(CorruptError, match="but its primary names key"):
        world["n2"].cipher.adopt(other)
    assert file.read_bytes() == before


def test_former_primary_does_not_change_the_key_reference(world: World) -> None:
    """A peer may repeat a message of an earlier term."""
    world.sites["n1"].again()
    world["n1"].cipher.use(ring())
    world.settle()
    held = world["n1"]._journal.held
    old = Begin("l", world["n1"].term - 1, held)
    key = KeyReference(Key.parse(KEY, "").id, (ELSEWHERE,))
    world["n2"].take(old, [], {}, key)
    assert world["n2"].cipher.reference == KeyReference.of(ring())


def test_primary_continues_its_encrypted_journal_after_a_restart(world: World) -> None:
    take(world["n1"])
    world.settle()
    world.sites["n1"].again()
    world.settle()
    assert world["n1"].leads
    world["n1"].cipher.use(ring())
    take(world["n1"])
    world.settle()
    assert bodies(world["n1"], 0, 20) == list(range(20))
    assert raw(world["n2"]) == raw(world["n1"])


def test_journal_stays_encrypted_after_a_cut(world: World) -> None:
    """n1 was not the primary for a while, and is it again."""
    take(world["n1"])
    world.settle()
    world["n1"].cut(0)
    take(world["n1"]._journal)  # type: ignore[arg-type]
    assert all(FrameHeader.unpack(f, 0, identity(NAME)).encrypted for f in raw(world["n1"]))


# When it leads.


def lead(world: World, name: str = "n2") -> ReplicatedJournal:
    """Let the node lead after a takeover; the former primary never returns."""
    end = take(world["n1"])
    world.settle()
    world.away = {"n1"}
    promote(world, name)
    world.settle()
    led = world[name]
    assert (led.leads, led.closed, led.safe) == (True, True, end)
    return led


def search(journal: ReplicatedJournal, told: Mapping[str, str] | None = None) -> KeySearch:
    journals: Mapping[str, Log] = {journal.id: journal}
    searching = KeySearch(lambda: journals)
    searching.set_texts(told or {})
    searching.search()
    return searching


def test_replica_that_leads_is_read_with_the_secret_of_its_node(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    led = lead(world)
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", KEY)
    search(led)
    assert led.cipher.problem == ""
    assert bodies(led, 0, 10) == list(range(10))
    nothing_is_in_plain_text(tmp_path)


def test_search_that_fails_again_and_again_is_logged_once_and_so_is_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_cipher: object, _named: object) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr(JournalCipher, "search", fail)
    searching = search(lead(world))
    searching.search()
    assert tracebacks(caplog) == 1
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(JournalCipher, "search", lambda _cipher, _named: None)
    searching.search()
    searching.search()
    assert caplog.text.count("its key can be searched again") == 1


def test_missing_secret_makes_readers_wait_and_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = lead(world)
    searching = search(led)
    key_id = Key.parse(KEY, "").id
    assert led.cipher.problem == (
        f"readers wait, since key {key_id} is not on this node: there is no secret journal-key: "
        "set FLUMENG_SECRET_JOURNAL_KEY, or write it to the file journal-key in $FLUMENG_SECRETS"
    )
    wait_for_key(led)
    assert led.safe == 10, "its positions are served"
    assert not searching.search(), "nothing else is said"
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", OTHER)
    assert searching.search()
    assert f"journal-key}} is key {Key.parse(OTHER, '').id}" in led.cipher.problem
    assert OTHER not in led.cipher.problem
    wait_for_key(led)
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", KEY)
    assert searching.search()
    assert led.cipher.problem == ""
    assert bodies(led, 0, 10) == list(range(10))


def test_secret_is_found_under_its_present_name_in_the_flow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name holds another key since, and the old one is among ``previous_keys``."""
    led = lead(world)
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", OTHER)
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY_2026", KEY)
    searching = search(led, {"other": text("encryption: {key: '${secret:journal-key-2026}'}")})
    wait_for_key(led)
    searching.set_texts({"web": "flow: ["})
    searching.search()
    wait_for_key(led)
    rotated = f"encryption: {{key: '{REFERENCE}', previous_keys: ['{ELSEWHERE}']}}"
    searching.set_texts({"web": text(rotated)})
    assert searching.search()
    assert bodies(led, 0, 10) == list(range(10))
    searching.set_texts({})
    assert bodies(led, 0, 10) == list(range(10))


def test_flow_that_is_not_encrypted_any_more_keeps_its_replicas_readable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = lead(world)
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", KEY)
    search(led, {"web": text("max_bytes: 1 GiB")})
    assert bodies(led, 0, 10) == list(range(10))


def test_replica_with_an_unknown_key_reports_it_when_it_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Somebody has removed the file; its frames are marked as encrypted."""
    take(world["n1"])
    world.settle()
    (tmp_path / "n2" / NAME / FILE).unlink()
    world.sites["n2"].again()
    world.away = {"n1"}
    promote(world, "n2")
    world.settle()
    led = world["n2"]
    wait_for_key(led)
    assert "no named secret holds it" in led.cipher.problem
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", KEY)
    search(led, {"web": text(f"encryption: {{key: '{REFERENCE}'}}")})
    assert bodies(led, 0, 10) == list(range(10))
    assert led.cipher.problem == ""


def test_readers_of_another_process_wait_and_the_problem_is_reported(world: World) -> None:
    led = lead(world)
    search(led)
    server = JournalServer("127.0.0.1", journals=lambda: {NAME: led})
    with JournalClient(server.address) as client:
        with pytest.raises(Exception, match="which this node lacks") as refused:
            list(client.read(NAME, 0, 10))
        assert type(refused.value).__name__ == "UnavailableError"
        account = client.accounts()[NAME]
        assert (account.safe, account.problem) == (10, led.cipher.problem)
    server.stop()


def test_altered_replica_that_leads_serves_no_events(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also with right checksums: a holder of a replica has no key to make events with. Another
    replica in sync serves them in its stead."""
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", KEY)
    led = lead(world)
    (segment,) = (tmp_path / "n2" / NAME).glob("*.segment")
    data = bytearray(segment.read_bytes())
    at = data.index(b"FLFR")
    header = FrameHeader.unpack(data, at, identity(NAME))
    data[at + header.message_offset + 60] ^= 1
    body = bytes(data[at + 64 : at + header.length])
    data[at : at + 64] = replace(header, payload_crc=crc32c(body)).pack()
    segment.write_bytes(data)
    with pytest.raises(UnavailableError, match="it was forged or moved; this replica is damaged"):
        bodies(led, 0, 10)


def test_tools_inspect_a_replica_with_and_without_the_key(world: World, tmp_path: Path) -> None:
    take(world["n1"])
    world.settle()
    world["n2"].close()
    directory = tmp_path / "n2" / NAME
    assert not inspect(directory).damaged
    assert "only its checksums are known" in str(inspect(directory).findings[0])
    assert not inspect(directory, keyring=ring()).findings
    (locked,) = dump(directory)
    assert isinstance(locked, Finding)
    assert f"encrypted with key {Key.parse(KEY, '').id}" in str(locked)
    ((first, batch),) = dump(directory, keyring=ring())  # type: ignore[misc]
    assert (first, batch.num_rows) == (0, 10)
    world.sites["n2"].open(ReplicaJournal.load(directory))


# Among the others of a worker.


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JournalStore]:
    store = stores.open_store(tmp_path / "n1")
    yield store
    stores.close(store)


def encrypted(store: JournalStore, keyring: Keyring) -> ReplicatedJournal:
    journal = store.take("web", "replicated", keyring=keyring)
    assert isinstance(journal, ReplicatedJournal)
    return journal


def written(store: JournalStore, journal: ReplicatedJournal, term: int = 1) -> None:
    stores.tell(store, journal.id, term=term)
    take(journal)


def test_a_flow_with_another_key_takes_another_journal_and_reads_the_old_one(
    store: JournalStore, tmp_path: Path
) -> None:
    first = encrypted(store, ring())
    written(store, first)
    store.give_back(first)
    assert encrypted(store, ring()) is first
    store.give_back(first)
    rotated = Keyring({ELSEWHERE: Key.parse(OTHER, ""), REFERENCE: Key.parse(KEY, "")})
    second = encrypted(store, rotated)
    written(store, second)
    assert second.id != first.id
    assert first.closed
    assert second.cipher.key_id == Key.parse(OTHER, "").id
    for journal in (first, second):
        frames = [frame for window in journal.read_frames(0, 10) for frame in window]
        assert [FrameHeader.unpack(f, 0, identity(journal.id)).encrypted for f in frames] == [False]
    nothing_is_in_plain_text(tmp_path)


def test_restarted_worker_continues_its_encrypted_journal(
    store: JournalStore, tmp_path: Path
) -> None:
    journal = encrypted(store, ring())
    written(store, journal)
    stores.close(store)
    again = stores.open_store(tmp_path / "n1")
    taken = encrypted(again, ring())
    assert taken.id == journal.id
    written(again, taken, term=5)
    assert taken.safe == 20
    nothing_is_in_plain_text(tmp_path)
    stores.close(again)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[ReplicaJournal]:
    """An encrypted journal on n9 with thirty events."""
    made = ReplicaJournal.make(
        tmp_path / "n9", replicas.THEIRS, Replica.new("n9"), term=5, key=KeyReference.of(ring())
    )
    made.cipher.use(ring())
    for start in (0, 10, 20):
        made.append(numbered_events(start, 10, 60), {"app.log": 1000 + start})
    made.sync()
    made.advance(30)
    yield made
    made.close()


def test_replica_made_by_its_primarys_first_message_is_encrypted(
    store: JournalStore, far: ReplicaJournal, tmp_path: Path
) -> None:
    answers = replicas.replica_of(store, far)
    assert [type(answer).__name__ for answer in answers] == ["Began", "Persisted"]
    nothing_is_in_plain_text(tmp_path / "n1")
    made = tmp_path / "n1/copies" / replicas.THEIRS / FILE
    assert made.read_bytes() == (tmp_path / "n9" / replicas.THEIRS / FILE).read_bytes()
    assert made.stat().st_mode & 0o777 == 0o600


def test_journal_of_another_host_does_not_stop_the_sources_here(
    store: JournalStore, far: ReplicaJournal
) -> None:
    """They have their own key, and that journal waits for its own."""
    replicas.replica_of(store, far)
    stores.tell(store, replicas.THEIRS, term=6)
    assert replicas.THEIRS in store.journals
    journal = encrypted(store, ring(OTHER))
    written(store, journal)
    assert journal.safe == 10


@pytest.mark.slow
def test_status_shows_a_locked_replica_until_the_node_sends_the_text(
    store: JournalStore, far: ReplicaJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY_2026", KEY)
    replicas.replica_of(store, far)
    stores.tell(store, replicas.THEIRS, term=6)
    told = stores.message(store, replicas.THEIRS)
    said = asyncio.run(stores.status_of(store, told))["journals"][replicas.THEIRS]
    assert "there is no secret journal-key:" in said["locked"]
    again = stores.open_store(store.path.parent)
    stores.tell(again, replicas.THEIRS, term=7)
    found = {"web": text(f"encryption: {{key: '{ELSEWHERE}'}}")}
    told = {**stores.message(again, replicas.THEIRS), "texts": found}
    said = asyncio.run(stores.status_of(again, told))["journals"][replicas.THEIRS]
    assert "locked" not in said
