"""Journals over real Flight sockets and under SIGKILL.

Acknowledged events survive the process, nothing above ``safe`` leaves it, damage on the wire is
noticed, and a reader gets its whole range or an error of the right kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.log.contract import Position
from flumeng.journal.log.errors import (
    AboveSafeError,
    BelowFloorError,
    DataLossError,
    NotServedError,
)
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.progress_history import ProgressSample
from flumeng.journal.log.repair import repair
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.server import JournalServer
from flumeng.journal.serving.wire import FRAMES_SCHEMA
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from tests.testkit.journal import numbered_events

ID = "web.n1.0.0a1b2c3d"
ROWS = 500
FRAMES = 60


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.create(tmp_path, ID, segment_bytes=100_000)
    for first in range(0, FRAMES * ROWS, ROWS):
        journal.append(numbered_events(first, ROWS, body_bytes=200))
    journal.sync()
    yield journal
    journal.check()
    journal.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """More than the buffers between a server and a client hold: 100 MB that do not compress."""
    journal = Journal.create(tmp_path_factory.mktemp("large"), "large")
    events = numbered_events(0, 4000)
    noise = pa.array([os.urandom(1000) for _ in range(4000)], pa.binary())
    batch = pa.RecordBatch.from_arrays([noise, *events.columns[1:]], schema=events.schema)
    for _ in range(25):
        journal.append(batch)
    journal.sync()
    yield journal
    journal.close()


@pytest.fixture
def server(journal: Journal) -> Iterator[JournalServer]:
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    yield server
    assert server.stop()


@pytest.fixture
def client(server: JournalServer) -> Iterator[JournalClient]:
    with JournalClient(server.address, timeout_seconds=60) as client:
        yield client


def seqs(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """Checks that each body is its own number."""
    table = pa.Table.from_batches(batches, READ_SCHEMA)
    found: list[int] = table["seq"].to_pylist()
    assert [int(body.rstrip(b".")) for body in table["body"].to_pylist()] == found
    return found


def test_positions_of_all_journals_come_in_one_call(
    journal: Journal, client: JournalClient
) -> None:
    assert client.positions() == {ID: Position(journal.term, 0, FRAMES * ROWS, closed=False)}
    journal.trim(20_000)
    journal.close_for_appends()
    assert client.positions() == {
        ID: Position(journal.term, journal.floor, FRAMES * ROWS, closed=True)
    }
    assert journal.floor > 0


def test_range_is_read_completely_and_in_order(client: JournalClient) -> None:
    for start, end in [(0, FRAMES * ROWS), (499, 501), (12_345, 23_456), (7, 7)]:
        assert seqs(client.read(ID, start, end)) == list(range(start, end))


def test_nothing_above_safe_leaves_the_process(journal: Journal, client: JournalClient) -> None:
    """I24 of flumeng.journal.replication."""
    end = journal.safe
    journal.append(numbered_events(end, ROWS))
    with pytest.raises(AboveSafeError):
        list(client.read(ID, end, end + 1))
    journal.sync()
    assert seqs(client.read(ID, end, end + 1)) == [end]


def test_errors_have_distinct_types(journal: Journal, client: JournalClient) -> None:
    journal.trim(20_000)
    for error, name, start, end in [
        (NotServedError, "web.n9.0.ffffffff", 0, 1),
        (BelowFloorError, ID, 0, 1),
        (AboveSafeError, ID, journal.floor, 10**9),
        (UserError, ID, 9, 3),
        (UserError, ID, -1, 3),
    ]:
        with pytest.raises(error):
            list(client.read(name, start, end))


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"journal": "../x"}',
        b'{"journal": 1, "start": 0, "end": 1}',
        b'{"journal": "x", "start": true, "end": 1}',
        b'{"journal": "x", "start": 0.5, "end": 1}',
        b"[" * 4000,
        b" " * 100_000,
        b"\xff\xfe",
    ],
)
def test_malformed_ticket_is_refused_with_a_message(server: JournalServer, ticket: bytes) -> None:
    with flight.FlightClient(f"grpc://{server.address}") as raw:
        with pytest.raises(flight.FlightError, match="ticket") as refused:
            raw.do_get(flight.Ticket(ticket)).read_all()
        assert json.loads(refused.value.extra_info)["kind"] == "bad-request"


def test_damage_on_disk_is_reported_to_the_reader_as_damage(
    tmp_path: Path, client: JournalClient
) -> None:
    oldest = min((tmp_path / ID).glob("*.segment"))
    content = bytearray(oldest.read_bytes())
    content[-200] ^= 1
    oldest.write_bytes(content)
    with pytest.raises(CorruptError, match="checksum"):
        list(client.read(ID, 0, FRAMES * ROWS))


class Lying(flight.FlightServerBase):  # type: ignore[misc]
    """Sends the given frames for any request."""

    def __init__(self, frames: list[bytes]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._frames = frames

    def do_get(self, _context: Any, _ticket: Any) -> Any:
        frames = pa.array(self._frames, pa.binary())
        return flight.RecordBatchStream(pa.table([frames], schema=FRAMES_SCHEMA))


def flip(frame: bytes) -> bytes:
    return frame[:-100] + bytes([frame[-100] ^ 8]) + frame[-99:]


@pytest.mark.parametrize(
    ("tamper", "error"),
    [
        (lambda frames: frames[:-1], DataLossError),
        (lambda frames: frames[1:], DataLossError),
        (lambda frames: [frames[0], *frames[2:]], DataLossError),
        (lambda frames: frames[:0], DataLossError),
        (lambda frames: [flip(frames[0]), *frames[1:]], CorruptError),
        (lambda frames: [frames[0][:-64], *frames[1:]], CorruptError),
        (lambda frames: [b"", *frames], CorruptError),
    ],
    ids=["end", "begin", "middle", "all", "bit", "cut", "empty"],
)
def test_dropped_or_altered_frames_on_the_wire_are_detected(
    journal: Journal, tamper: Callable[[list[bytes]], list[bytes]], error: type[Exception]
) -> None:
    frames = [frame.to_pybytes() for window in journal.read_frames(0, 4 * ROWS) for frame in window]
    with Lying(tamper(frames)) as lying, JournalClient(f"127.0.0.1:{lying.port}") as client:
        range_ = client.read(ID, 0, 4 * ROWS)
        with pytest.raises(error):
            list(range_)
    with Lying(frames) as honest, JournalClient(f"127.0.0.1:{honest.port}") as client:
        with pytest.raises(CorruptError, match="another journal"):
            list(client.read("web.n9.0.ffffffff", 0, 4 * ROWS))
        assert len(seqs(client.read(ID, 0, 4 * ROWS))) == 4 * ROWS


def test_reader_slower_than_the_time_limit_still_gets_everything(large: Journal) -> None:
    """The limit is for a server that does not answer, not for the work done between batches."""
    server = JournalServer("127.0.0.1", journals=lambda: {"large": large})
    limit_seconds = 2.0
    with JournalClient(server.address, timeout_seconds=limit_seconds) as client:
        found: list[int] = []
        began = time.monotonic()
        for batch in client.read("large", 0, large.safe):
            found += batch.column("seq").to_pylist()
            time.sleep(0.1)
    assert time.monotonic() - began > limit_seconds
    assert found == list(range(large.safe))
    assert server.stop()


def test_missing_or_silent_server_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with JournalClient(address, timeout_seconds=0.5) as client:
            begin = time.monotonic()
            with pytest.raises(UnavailableError):
                client.positions()
            with pytest.raises(UnavailableError):
                list(client.read(ID, 0, 1))
            assert time.monotonic() - begin < 30
    with JournalClient(address, timeout_seconds=30) as client, pytest.raises(UnavailableError):
        client.positions()


def test_port_in_use_is_reported_in_one_sentence(server: JournalServer) -> None:
    host, port = server.address.rsplit(":", 1)
    with pytest.raises(UserError, match="cannot listen"):
        JournalServer(host, int(port), journals=dict)


def test_reader_that_stops_reading_does_not_delay_the_stop(large: Journal) -> None:
    server = JournalServer("127.0.0.1", journals=lambda: {"large": large})
    client = JournalClient(server.address)
    reader = client.read("large", 0, large.safe)
    next(reader)
    begin = time.monotonic()
    server.stop(timeout_seconds=1.0)
    assert time.monotonic() - begin < 30
    with pytest.raises(UnavailableError):
        list(reader)
    client.close()


WORKER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    import pyarrow as pa
    from flumeng.journal.log.frame import Payload
    from flumeng.journal.log.group_commit import GroupCommit
    from flumeng.journal.log.journal import Journal
    from flumeng.journal.serving.server import JournalServer

    directory = Path(sys.argv[1])
    batch = pa.ipc.open_stream(sys.stdin.buffer).read_next_batch()
    journal = Journal.open(directory, segment_bytes=200_000)
    server = JournalServer("127.0.0.1", journals=lambda: {journal.id: journal})

    class Item:
        nbytes = batch.nbytes

    def build(items):
        for _ in items:
            yield Payload.encode(batch, {"end": journal.next_seq + batch.num_rows})

    def on_durable(items, end):
        print(journal.safe, flush=True)

    commit = GroupCommit(journal, build, on_durable=on_durable)
    print(server.address, flush=True)
    while True:
        commit.submit(Item())
        while commit.pending_bytes > 10 * batch.nbytes:
            time.sleep(0.0005)
""")


class Worker:
    """A process that appends for ever, prints the durable seq and serves the journal."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        batch = numbered_events(0, 100, body_bytes=200)
        with pa.ipc.new_stream(self.process.stdin, batch.schema) as stream:
            stream.write_batch(batch)
        self.process.stdin.close()
        self.address = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def run_for(self, groups: int) -> int:
        """The last seq that was printed as durable."""
        return [int(self._line()) for _ in range(groups)][-1]

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def kill(self) -> int:
        """Kill with SIGKILL; returns the last seq that was printed as durable."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        whole = self.process.stdout.read().rpartition(b"\n")[0].split()
        self.process.stdout.close()
        return int(whole[-1]) if whole else 0


def test_i1_durable_events_survive_sigkill_and_positions_never_decrease(tmp_path: Path) -> None:
    Journal.create(tmp_path, ID).close()
    seen = 0
    for round_ in range(5):
        worker = Worker(tmp_path / ID)
        with JournalClient(worker.address) as client:
            assert client.positions()[ID].safe >= seen
            worker.run_for(30 + 7 * round_)
            seen = client.positions()[ID].safe
            assert sum(batch.num_rows for batch in client.read(ID, 0, seen)) == seen
            seen = max(seen, worker.kill())
            with pytest.raises(UnavailableError):
                client.positions()
    journal = Journal.open(tmp_path / ID)
    assert journal.safe >= seen > 0
    assert journal.state == {"end": journal.safe}
    assert sum(batch.num_rows for batch in journal.read(0, journal.safe)) == journal.safe
    journal.check()
    journal.close()


def test_read_interrupted_by_sigkill_is_an_error_and_not_a_short_answer(tmp_path: Path) -> None:
    Journal.create(tmp_path, ID).close()
    worker = Worker(tmp_path / ID)
    end = worker.run_for(200)
    with JournalClient(worker.address) as client:
        reader = client.read(ID, 0, end)
        count = next(reader).num_rows
        worker.kill()
        with pytest.raises(UnavailableError):
            count += sum(batch.num_rows for batch in reader)
            assert count == end  # all of it may have been on its way already
            raise UnavailableError


def test_journal_part_of_a_worker_stays_small_in_memory(tmp_path: Path) -> None:
    """The ingest worker's budget is 120 MB in all; pandas alone would take 50 of them."""
    Journal.create(tmp_path, ID).close()
    worker = Worker(tmp_path / ID)
    try:
        end = worker.run_for(300)
        with JournalClient(worker.address) as client:
            assert sum(batch.num_rows for batch in client.read(ID, 0, end)) == end
        assert worker.resident_mb() < 105
    finally:
        worker.kill()


def test_age_of_an_event_is_computed_without_loading_a_library(tmp_path: Path) -> None:
    """Loading pandas holds up a worker for a second, in which the kernel drops datagrams."""
    journal = Journal.create(tmp_path, ID)
    journal.append(numbered_events(0, 3))
    journal.sync()
    journal.close()
    script = (
        "import sys; from pathlib import Path; from flumeng.journal.log.journal import Journal; "
        "from flumeng.journal.serving.server import received_us; "
        f"told = received_us(Journal.open(Path({str(tmp_path / ID)!r})), 2); "
        "print(told is not None, 'pandas' in sys.modules, 'pyarrow.compute' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True False False\n"


def test_accounts_include_the_position_of_a_minute_ago(journal: Journal) -> None:
    server = JournalServer(
        "127.0.0.1",
        journals=lambda: {ID: journal},
        minute_ago=lambda name: ProgressSample(0.0, 3, 10) if name == ID else None,
    )
    try:
        with JournalClient(server.address) as client:
            account = client.accounts()[ID]
    finally:
        server.stop()
    assert (account.acked_minute_ago, account.unacked_minute_ago) == (3, 7)


def test_accounts_show_the_kept_events_and_the_age_of_the_oldest(
    journal: Journal, client: JournalClient
) -> None:
    """The events' receive times are their numbers, in microseconds."""
    journal.trim(12_345)
    account = client.accounts()[ID]
    assert (account.floor, account.acked, account.safe) == (journal.floor, 12_345, journal.safe)
    assert account.oldest_unacked_us == 12_345
    assert account.bytes == sum(path.stat().st_size for path in segments_of(journal))
    assert (account.durability, account.lost, account.waits_at) == ("disk", 0, None)
    journal.trim(journal.safe)
    assert client.accounts()[ID].oldest_unacked_us is None


def segments_of(journal: Journal) -> list[Path]:
    return sorted(journal._directory.glob("*.segment"))


def test_reader_does_not_pass_a_loss_before_it_is_accepted(tmp_path: Path) -> None:
    """The reader gets the whole events before it; then a DataLossError that names the repair
    command."""
    journal = Journal.create(tmp_path, ID, segment_bytes=100_000)
    for first in range(0, FRAMES * ROWS, ROWS):
        journal.append(numbered_events(first, ROWS, body_bytes=200))
    journal.close()
    damaged = segments_of(journal)[3]
    start = int(damaged.name.partition(".")[0])
    damaged.unlink()
    (lost,) = repair(tmp_path / ID).lost
    assert lost[0] == start
    kept = [seq for seq in range(FRAMES * ROWS) if not lost[0] <= seq < lost[1]]
    with serving(tmp_path / ID) as reader:
        assert (reader.positions()[ID].safe, reader.accounts()[ID].waits_at) == (start, start)
        assert reader.positions()[ID].held == FRAMES * ROWS - start
        assert seqs(reader.read(ID, 0, start)) == list(range(start))
        with pytest.raises(DataLossError, match="repair --accept-loss"):
            list(reader.read(ID, 0, FRAMES * ROWS))
    repair(tmp_path / ID, accept_loss=True)
    with serving(tmp_path / ID) as reader:
        assert reader.positions()[ID].safe == FRAMES * ROWS
        assert reader.accounts()[ID].waits_at is None
        assert seqs(reader.read(ID, 0, FRAMES * ROWS)) == kept


def test_intact_events_before_damage_reach_the_reader(tmp_path: Path) -> None:
    """Also within the window that was read together with it, and in small frames that are gathered:
    a flipped bit in a header and in events, and a file that ends early, like a bad sector."""
    journal = Journal.create(tmp_path, ID)
    for first in range(0, 400, 4):
        journal.append(numbered_events(first, 4, body_bytes=200))
    journal.close_for_appends()
    (file,) = segments_of(journal)
    journal.close()
    whole = file.read_bytes()
    begin = [at for at in range(0, len(whole), 64) if whole[at : at + 4] == b"FLFR"][50]
    with serving(tmp_path / ID) as reader:
        assert list(got_before_damage(reader, 0, 400)) == list(range(400))
        for at in (begin + 4, begin + 30, begin + 200):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert list(got_before_damage(reader, 0, 400)) == list(range(200)), at
        for at in (begin, begin + 10, begin + 200):
            file.write_bytes(whole[:at])
            assert list(got_before_damage(reader, 0, 400)) == list(range(200)), at
        file.write_bytes(whole)
        assert reader.positions()[ID].held == 0


def test_damaged_header_hides_no_event_before_it_in_an_older_segment(tmp_path: Path) -> None:
    """A reader finds its start in the segment of an earlier process by walking over its headers."""
    journal = Journal.create(tmp_path, ID, segment_bytes=100_000)
    for first in range(0, 800, 4):
        journal.append(numbered_events(first, 4, body_bytes=200))
    journal.close()
    file = segments_of(journal)[0]
    damaged = bytearray(file.read_bytes())
    begin = [at for at in range(0, len(damaged), 64) if damaged[at : at + 4] == b"FLFR"][50]
    damaged[begin] ^= 1
    file.write_bytes(damaged)
    with serving(tmp_path / ID) as reader:
        assert list(got_before_damage(reader, 100, 300)) == list(range(100, 200))


def got_before_damage(reader: JournalClient, start: int, end: int) -> Iterator[int]:
    """The seqs that are read before an error comes."""
    with contextlib.suppress(CorruptError):
        for batch in reader.read(ID, start, end):
            yield from batch.column("seq").to_pylist()


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[JournalClient]:
    journal = Journal.open(directory)
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    with JournalClient(server.address, timeout_seconds=60) as client:
        yield client
    assert server.stop()
    journal.close()


def test_client_names_the_cause_and_not_the_steps_of_grpc() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    client = JournalClient(f"127.0.0.1:{port}", prove=lambda: None)
    with pytest.raises(UnavailableError) as caught:
        list(client.read("web.n1.0.0", 0, 1))
    why = "Failed to connect to remote host: Connection refused"
    assert str(caught.value) == f"server 127.0.0.1:{port} does not answer: {why}"
