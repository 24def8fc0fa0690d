"""Journals that are encrypted on disk: their readers, detected damage, and uses without a key."""

from __future__ import annotations

import base64
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from flumeng.journal.log.encryption import FRAMES_A_SALT, Key, Keyring, Sealer
from flumeng.journal.log.errors import KeyMissingError
from flumeng.journal.log.frame import FrameHeader, Payload, identity
from flumeng.journal.log.inspection import Finding, dump, inspect
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.journal_cipher import FILE
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.log.repair import repair
from flumeng.journal.log.segment import Window
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from tests.testkit.journal import numbered_events

ID = "web.n1.0.0a1b2c3d"
ROWS = 50
REFERENCE = "${secret:journal-key}"
OLD, NEW = "0b" * 32, "a7" * 32


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", OLD)
    return OLD


def ring(text: str = OLD, reference: str = REFERENCE) -> Keyring:
    return Keyring({reference: Key.parse(text, reference)})


def made(directory: Path, frames: int = 4) -> Path:
    """A closed journal of several segments."""
    journal = Journal.create(directory, ID, segment_bytes=4096, keyring=ring())
    for first in range(0, frames * ROWS, ROWS):
        journal.append(numbered_events(first, ROWS, 40), {"app.log": first})
    journal.close()
    return directory / ID


def bodies(journal: Journal | MemoryJournal, start: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    for window in journal.read_frames(start, end):
        for frame in window:
            header = FrameHeader.unpack(frame, 0, identity(journal.id))
            assert not header.encrypted
    if isinstance(journal, Journal):
        for batch in journal.read(start, end):
            found += batch.column("body").to_pylist()
    return found


def expected(count: int) -> list[bytes]:
    return [str(seq).encode().ljust(40, b".") for seq in range(count)]


def everything(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def frame_at(path: Path) -> tuple[int, FrameHeader]:
    """The offset and header of a segment's first frame."""
    data = path.read_bytes()
    at = data.index(b"FLFR")
    return at, FrameHeader.unpack(data, at, identity(ID))


def test_written_events_are_read_back_and_no_body_is_on_the_disk(tmp_path: Path) -> None:
    directory = made(tmp_path)
    assert b"......" not in everything(directory)
    assert OLD.encode() not in everything(directory)
    assert bytes.fromhex(OLD) not in everything(directory)
    journal = Journal.open(directory)
    assert bodies(journal, 0, 4 * ROWS) == expected(4 * ROWS)
    assert dict(journal.state) == {"app.log": 3 * ROWS}
    journal.check()
    journal.close()


@pytest.mark.parametrize("text", [OLD, OLD.upper(), base64.b64encode(bytes.fromhex(OLD)).decode()])
def test_key_may_be_hexadecimal_or_base64(text: str) -> None:
    assert Key.parse(text, REFERENCE) == Key.parse(OLD, REFERENCE)


@pytest.mark.parametrize("text", ["", "0b" * 31, "hunter2", "zz" * 32, "é" * 32, "0b" * 33])
def test_invalid_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UserError, match="journal-key} is not a key") as refused:
        Key.parse(text, REFERENCE)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None
    assert not text or text not in str(refused.value)
    assert OLD not in repr(Key.parse(OLD, REFERENCE))


def test_plain_events_are_read_without_copying(tmp_path: Path) -> None:
    """An unencrypted journal pays nothing for encryption."""
    journal = Journal.create(tmp_path, ID)
    journal.append(numbered_events(0, ROWS))
    journal.sync()
    window = Window(pa.py_buffer(b"x"), [0, 1])
    (passed,) = journal.cipher.opened(iter([window]))
    assert passed is window
    (found,) = journal.read_frames(0, ROWS)
    (segment,) = (tmp_path / ID).glob("*.segment")
    assert found.buffer.to_pybytes() in segment.read_bytes()
    journal.close()


def test_no_nonce_is_used_twice_for_events_written_again() -> None:
    """After a crash the same events get the same seqs and the same term."""
    payload = Payload.encode(numbered_events(0, 3), {"k": 1})
    used: Counter[bytes] = Counter()
    for _ in range(3):
        sealer = Sealer(Key.parse(OLD, REFERENCE), identity(ID))
        for _ in range(20):
            header, _ = payload.at(identity(ID), 1, 0)
            sealed, parts = sealer.seal(header, payload.state_blob, payload.message)
            frame = b"".join(bytes(part) for part in parts)
            used[frame[sealed.message_offset + 8 :][:28]] += 1
    assert max(used.values()) == 1


def test_counted_nonce_is_unique_for_any_random_source() -> None:
    """Two halves: one is counted, and the other drawn."""
    payload = Payload.encode(numbered_events(0, 3))
    sealer = Sealer(Key.parse(OLD, REFERENCE), identity(ID), bytes)
    header, _ = payload.at(identity(ID), 1, 0)
    made = [sealer.seal(header, b"", payload.message)[1][3] for _ in range(50)]
    assert len({bytes(envelope) for envelope in made}) == 50


def test_salt_is_redrawn_before_a_cipher_reaches_its_limit() -> None:
    assert FRAMES_A_SALT * (64 << 20) < 2**43, "far below the bounds of NIST SP 800-38D"
    payload = Payload.encode(numbered_events(0, 3))
    sealer = Sealer(Key.parse(OLD, REFERENCE), identity(ID), frames_a_salt=3)
    header, _ = payload.at(identity(ID), 1, 0)
    salts = [bytes(sealer.seal(header, b"", payload.message)[1][3])[8:24] for _ in range(7)]
    assert [salts.count(salt) for salt in dict.fromkeys(salts)] == [3, 3, 1]


def resealed(path: Path, change: str) -> None:
    """Change a header and correct all checksums, as an attacker would."""
    at, header = frame_at(path)
    data = bytearray(path.read_bytes())
    frame = data[at : at + header.length]
    if change == "events":
        frame[-70] ^= 1
    elif change == "salt":
        frame[header.message_offset + 9] ^= 1
    elif change == "nonce":
        frame[header.message_offset + 25] ^= 1
    elif change == "state":
        frame[64 + 11] ^= 1
    elif change == "seq":
        header = replace(header, first_seq=header.first_seq + 1)
    elif change == "term":
        header = replace(header, term=header.term - 1)
    elif change == "count":
        header = replace(header, count=header.count - 1)
    frame[:64] = replace(header, payload_crc=crc32c(frame[64:])).pack()
    data[at : at + header.length] = frame
    path.write_bytes(data)


@pytest.mark.parametrize("change", ["events", "salt", "nonce", "state", "seq", "term", "count"])
def test_no_part_of_a_frame_can_be_changed_without_the_key(tmp_path: Path, change: str) -> None:
    """An attacker can make right checksums."""
    directory = made(tmp_path, frames=1)
    (path,) = directory.glob("*.segment")
    resealed(path, change)
    findings = inspect(directory, keyring=ring()).findings
    assert any("it was forged or moved" in str(finding) for finding in findings)
    assert not any("somebody" in str(finding) for finding in inspect(directory).findings)


def test_a_frame_of_another_journal_does_not_pass() -> None:
    """Its owner is in its header, which is authenticated."""
    payload = Payload.encode(numbered_events(0, 3))
    header, _ = payload.at(identity(ID), 1, 0)
    sealed, parts = Sealer(Key.parse(OLD, ""), identity(ID)).seal(header, b"", payload.message)
    other = replace(sealed, journal=identity("other.n1.0.0a1b2c3d"))
    frame = pa.py_buffer(b"".join(map(bytes, [other.pack(), *parts[1:]])))
    with pytest.raises(CorruptError, match="it was forged or moved"):
        ring().opened(frame, other)


def test_damaged_frame_is_reported_as_damage_behind_the_frames_before_it(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, ID, keyring=ring())
    for first in range(0, 3 * ROWS, ROWS):
        journal.append(numbered_events(first, ROWS))
    journal.sync()
    (path,) = (tmp_path / ID).glob("*.segment")
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    windows = journal.read_frames(0, 3 * ROWS)
    assert len(next(windows).offsets) == 3
    with pytest.raises(CorruptError, match="the payload's checksum does not match"):
        next(windows)
    journal.close()


def test_readers_need_no_key(tmp_path: Path) -> None:
    """Collectors, taps and executors get the same as from a journal in plain text."""
    directory = made(tmp_path)
    journal = Journal.open(directory)
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    with JournalClient(server.address) as client:
        found = [body for batch in client.read(ID, 10, 190) for body in batch["body"].to_pylist()]
        assert found == expected(200)[10:190]
        (account,) = client.accounts().values()
        assert account.oldest_unacked_us == 0
    server.stop()
    journal.close()


def test_journal_without_its_key_is_not_read_or_written_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = made(tmp_path)
    before = everything(directory)
    monkeypatch.delenv("FLUMENG_SECRET_JOURNAL_KEY")
    journal = Journal.open(directory)
    key_id = Key.parse(OLD, "").id
    with pytest.raises(
        KeyMissingError, match=f"encrypted with key {key_id}, which this node lacks"
    ):
        next(journal.read_frames(0, 1))
    with pytest.raises(KeyMissingError, match="there is no secret journal-key"):
        next(journal.read_frames(0, 1))
    with pytest.raises(KeyMissingError, match="is key"):
        journal.cipher.use(ring(NEW))
    with pytest.raises(UserError, match="takes no events without its key"):
        journal.append(numbered_events(0, 1))
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", NEW)
    with pytest.raises(KeyMissingError, match="journal-key} is key"):
        next(journal.read_frames(0, 1))
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", OLD)
    assert bodies(journal, 0, 4 * ROWS) == expected(4 * ROWS)
    journal.close()
    segments = b"".join(path.read_bytes() for path in sorted(directory.glob("*.segment")))
    assert segments in before


def test_missing_key_is_unavailable_for_clients_on_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(made(tmp_path))
    monkeypatch.delenv("FLUMENG_SECRET_JOURNAL_KEY")
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    with (
        JournalClient(server.address) as client,
        pytest.raises(UnavailableError, match="previous_keys"),
    ):
        list(client.read(ID, 0, 10))
    server.stop()
    journal.close()


def test_recovery_cuts_a_torn_tail_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = made(tmp_path, frames=1)
    (path,) = directory.glob("*.segment")
    path.write_bytes(path.read_bytes() + b"FLFR" + bytes(500))
    monkeypatch.delenv("FLUMENG_SECRET_JOURNAL_KEY")
    Journal.open(directory).close()
    monkeypatch.setenv("FLUMENG_SECRET_JOURNAL_KEY", OLD)
    journal = Journal.open(directory)
    assert bodies(journal, 0, ROWS) == expected(ROWS)
    journal.close()


def test_repair_needs_no_key_and_leaves_intact_frames_readable(tmp_path: Path) -> None:
    """Frames are moved to other files, and name their own key."""
    directory = made(tmp_path)
    damaged = sorted(directory.glob("*.segment"))[1]
    data = bytearray(damaged.read_bytes())
    data[10] ^= 1
    damaged.write_bytes(data)
    assert inspect(directory).damaged
    assert repair(directory, accept_loss=True).lost == ()
    journal = Journal.open(directory)
    assert bodies(journal, 0, 4 * ROWS) == expected(4 * ROWS)
    journal.close()


def test_tools_take_the_key_and_say_when_it_is_missing(tmp_path: Path) -> None:
    directory = made(tmp_path)
    key_id = Key.parse(OLD, "").id
    found = list(dump(directory, 0, None, ring()))
    assert [seq for seq, _ in (one for one in found if isinstance(one, tuple))] == [0, 50, 100, 150]
    for one in dump(directory, 0, None, ring(NEW)):
        assert isinstance(one, Finding)
        assert f"are encrypted with key {key_id}" in str(one)
    looked = inspect(directory)
    assert not looked.damaged
    assert {finding.what for finding in looked.findings} == {
        f"encrypted with key {key_id}, which was not given: only its checksums are known"
    }
    assert inspect(directory, keyring=ring()).findings == []


def test_a_journal_in_memory_gets_onto_the_disk_encrypted(tmp_path: Path) -> None:
    journal = MemoryJournal.create(tmp_path, ID, keyring=ring())
    for first in range(0, 3 * ROWS, ROWS):
        journal.append(numbered_events(first, ROWS, 40), {"app.log": first})
    journal.sync()
    assert bodies(journal, 0, 3 * ROWS) == []
    journal.close()
    assert b"......" not in everything(tmp_path / ID)
    left = Journal.open(tmp_path / ID)
    assert bodies(left, 0, 3 * ROWS) == expected(3 * ROWS)
    left.close()


def test_file_that_names_the_key_is_private_and_holds_no_key(tmp_path: Path) -> None:
    directory = made(tmp_path)
    file = directory / FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert REFERENCE in file.read_text()
    for damaged, why in (
        ("{}", "it names no key"),
        ('{"key": 5}', "it names no key"),
        ("[]", "it holds no JSON object"),
    ):
        file.write_text(damaged)
        with pytest.raises(CorruptError, match=f"{why}; restore it"):
            Journal.open(directory)
    file.unlink()
    journal = Journal.open(directory)
    with pytest.raises(KeyMissingError, match="no keys"):
        next(journal.read_frames(0, 1))
    journal.close()


def test_wrong_key_releases_the_lock(tmp_path: Path) -> None:
    directory = made(tmp_path)
    with pytest.raises(KeyMissingError):
        Journal.open(directory, keyring=ring(NEW))
    Journal.open(directory, keyring=ring()).close()
    assert os.listdir(directory)  # noqa: PTH208
