"""Any bytes over Flight, at the server or at the client, give an error of the right kind, never
wrong data, never much memory.

``FLUMENG_TEST_EXAMPLES`` says how much is tried.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.server import JournalServer
from flumeng.journal.serving.wire import ERROR_KINDS, FRAMES_SCHEMA
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError
from tests.testkit.journal import numbered_events

ID = "web.n1.0.0a1b2c3d"
EVENTS = 600
fuzzing = settings(
    max_examples=int(os.environ.get("FLUMENG_TEST_EXAMPLES", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
seqs = st.integers(-3, EVENTS + 3) | st.integers() | json_values
tickets = (
    st.binary(max_size=200)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.just(b'{"journal": "\\ud800", "start": 0, "end": 1}')
    | st.fixed_dictionaries(
        {"journal": st.just(ID) | st.text(max_size=300) | json_values, "start": seqs, "end": seqs}
    ).map(lambda value: json.dumps(value).encode())
)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    journal = Journal.create(tmp_path_factory.mktemp("wire"), ID, segment_bytes=20_000)
    for first in range(0, EVENTS, 50):
        journal.append(numbered_events(first, 50, body_bytes=200))
    journal.sync()
    yield journal
    journal.close()


@pytest.fixture(scope="module")
def server(journal: Journal) -> Iterator[JournalServer]:
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    yield server
    assert server.stop()


@pytest.fixture(scope="module")
def raw(server: JournalServer) -> Iterator[flight.FlightClient]:
    with flight.FlightClient(f"grpc://{server.address}") as raw:
        yield raw


@pytest.fixture(scope="module")
def frames(journal: Journal) -> list[bytes]:
    return frames_of(journal)


def frames_of(journal: Journal) -> list[bytes]:
    return [frame.to_pybytes() for window in journal.read_frames(0, EVENTS) for frame in window]


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def kind_of(error: flight.FlightError) -> str:
    return str(json.loads(error.extra_info)["kind"])


@fuzzing
@given(ticket=tickets)
def test_any_ticket_gets_frames_or_an_error_with_its_kind(
    raw: flight.FlightClient, frames: list[bytes], ticket: bytes
) -> None:
    try:
        got = raw.do_get(flight.Ticket(ticket)).read_all()
    except flight.FlightError as error:
        assert kind_of(error) in dict(ERROR_KINDS)
    else:
        asked = json.loads(ticket)
        assert asked["journal"] == ID and 0 <= asked["start"] <= asked["end"] <= EVENTS
        assert all(frame in frames for frame in got.column(0).to_pylist())


@fuzzing
@given(name=st.text(max_size=50), body=st.binary(max_size=200))
def test_any_action_gets_an_answer_or_an_error_with_its_kind(
    raw: flight.FlightClient, name: str, body: bytes
) -> None:
    try:
        (result,) = raw.do_action(flight.Action(name, body))
        json.loads(result.body.to_pybytes())
    except flight.FlightError as error:
        assert kind_of(error) == "bad-request"


@fuzzing
@given(body=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_watch_is_refused_as_a_bad_request(raw: flight.FlightClient, body: bytes) -> None:
    with pytest.raises(flight.FlightError) as refused:
        list(raw.do_action(flight.Action("watch", body)))
    assert kind_of(refused.value) == "bad-request"


def test_unsupported_flight_calls_are_refused(raw: flight.FlightClient) -> None:
    table = pa.table({"x": [1]})
    with pytest.raises(flight.FlightServerError, match="do_get, do_action and do_exchange only"):
        list(raw.list_flights())
    with pytest.raises(flight.FlightServerError, match="do_get, do_action and do_exchange only"):
        raw.get_flight_info(flight.FlightDescriptor.for_path("x"))
    with pytest.raises(flight.FlightServerError, match="do_get, do_action and do_exchange only"):
        writer, _ = raw.do_put(flight.FlightDescriptor.for_path("x"), table.schema)
        writer.write_table(table)
        writer.close()


def test_large_tickets_and_bodies_leave_no_memory_behind(
    raw: flight.FlightClient, server: JournalServer
) -> None:
    def send() -> None:
        with pytest.raises(flight.FlightError):
            raw.do_get(flight.Ticket(b"[" * (8 << 20))).read_all()
        with pytest.raises(flight.FlightError):
            list(raw.do_action(flight.Action("x", b"x" * (8 << 20))))

    for _ in range(5):
        send()
    before = rss_mb()
    for _ in range(30):
        send()
    assert rss_mb() - before < 150, "of 480 MB that were sent"
    with JournalClient(server.address) as client:
        assert client.positions()[ID].safe == EVENTS


class Liar(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every request with the bytes of ``answer``."""

    def __init__(self) -> None:
        self.answer: Any = b""
        self.batch: pa.RecordBatch | None = None
        super().__init__("grpc://127.0.0.1:0")

    def do_action(self, _context: Any, _action: Any) -> Any:
        return iter([flight.Result(part) for part in self.answer])

    def do_get(self, _context: Any, _ticket: Any) -> Any:
        if self.batch is None:
            raise flight.FlightServerError("no", extra_info=self.answer)
        return flight.GeneratorStream(self.batch.schema, iter([self.batch]))


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with Liar() as liar:
        yield liar


@pytest.fixture(scope="module")
def client(liar: Liar) -> Iterator[JournalClient]:
    with JournalClient(f"127.0.0.1:{liar.port}", timeout_seconds=60) as client:
        yield client


@fuzzing
@given(
    answer=st.lists(
        st.binary(max_size=50) | json_values.map(lambda value: json.dumps(value).encode()),
        max_size=2,
    )
)
def test_any_answer_to_an_action_is_understood_or_an_error(
    liar: Liar, client: JournalClient, answer: list[bytes]
) -> None:
    liar.answer = answer
    for ask in (client.positions, client.accounts, client.counters):
        try:
            ask()
        except FlumengError as error:
            assert isinstance(error, CorruptError | UnavailableError)


@fuzzing
@given(info=st.binary(min_size=1, max_size=50) | json_values.map(lambda v: json.dumps(v).encode()))
def test_any_refusal_is_a_flumeng_error(liar: Liar, client: JournalClient, info: bytes) -> None:
    liar.batch, liar.answer = None, info
    with pytest.raises(FlumengError):
        list(client.read(ID, 0, EVENTS))


bounds = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 60_000)


@fuzzing
@given(
    damage=st.lists(st.tuples(st.integers(1, EVENTS // 50 - 1), bounds), max_size=3),
    flips=st.lists(st.integers(0, 2**18), max_size=2),
)
def test_frames_with_wrong_bounds_or_flipped_bits_are_refused_or_right(
    liar: Liar,
    client: JournalClient,
    journal: Journal,
    damage: list[tuple[int, int]],
    flips: list[int],
) -> None:
    """The frames have checksums; their bounds in Arrow have none."""
    frames = frames_of(journal)
    data = np.frombuffer(b"".join(frames), np.uint8).copy()
    ends = np.cumsum([0, *map(len, frames)]).astype(np.int32)
    column = pa.Array.from_buffers(
        pa.binary(), len(frames), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    liar.batch = pa.RecordBatch.from_arrays([column], schema=FRAMES_SCHEMA)
    for flip in flips:
        data[flip // 8 % len(data)] ^= 1 << flip % 8
    for at, value in damage:
        ends[at] = value
    try:
        table = pa.Table.from_batches(client.read(ID, 0, EVENTS))
    except CorruptError:
        return
    assert table.combine_chunks() == pa.Table.from_batches(journal.read(0, EVENTS)).combine_chunks()


def test_frame_with_valid_checksums_and_invalid_events_is_refused(
    liar: Liar, client: JournalClient, frames: list[bytes]
) -> None:
    """More such frames are tried in `tests/props/test_journal_hostile.py`."""
    header = FrameHeader.unpack(frames[0], 0, identity(ID))
    message = frames[0][header.message_offset :]
    payload = message.replace(struct.pack("<q", header.count), struct.pack("<q", 2**40))
    crafted = replace(header, state_bytes=0, payload_crc=crc32c(payload)).pack() + payload
    liar.batch = pa.record_batch([pa.array([crafted, *frames[1:]], pa.binary())], FRAMES_SCHEMA)
    with pytest.raises(CorruptError, match="at or after seq 0: "):
        list(client.read(ID, 0, EVENTS))


@pytest.mark.parametrize(
    "column",
    [pa.array([1, 2]), pa.array(["x"]), pa.array([[b"x"]]), pa.array([None], pa.binary())],
    ids=str,
)
def test_columns_that_are_not_frames_are_refused(
    liar: Liar, client: JournalClient, column: pa.Array
) -> None:
    liar.batch = pa.RecordBatch.from_arrays([column], ["frame"])
    with pytest.raises(CorruptError):
        list(client.read(ID, 0, EVENTS))


DATA_HEADER, DATA_BODY = 2, 1000
"""Fields of Flight's message FlightData."""


def _message(fields: dict[int, bytes]) -> bytes:
    """A protobuf message of bytes fields by their numbers."""
    return b"".join(
        _varint(number << 3 | 2) + _varint(len(content)) + content
        for number, content in fields.items()
    )


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes([number])
    return bytes([number & 0x7F | 0x80]) + _varint(number >> 7)


SCHEMA = _message({DATA_HEADER: FRAMES_SCHEMA.serialize().to_pybytes()[8:]})
BATCH = pa.record_batch([pa.array([b"x" * 1000], pa.binary())], schema=FRAMES_SCHEMA).serialize()
BATCH_HEADER = BATCH.to_pybytes()[8 : 8 + int.from_bytes(BATCH.to_pybytes()[4:8], "little")]


@pytest.mark.parametrize(
    "answer",
    [
        [b"\xff\xff\xff"],
        [b""],
        [_message({DATA_HEADER: b""})],
        [_message({DATA_HEADER: b"\xff" * 64})],
        [SCHEMA, SCHEMA],
        [SCHEMA, _message({DATA_HEADER: b"\x00" * 16, DATA_BODY: b"abc"})],
        [SCHEMA, _message({DATA_HEADER: BATCH_HEADER})],
        [SCHEMA, _message({DATA_HEADER: BATCH_HEADER, DATA_BODY: b"abc"})],
    ],
    ids=lambda answer: b" ".join(answer).hex()[:20],
)
def test_answer_that_is_not_flight_is_a_flumeng_error(answer: list[bytes]) -> None:
    """A server of something else, or an answer that was changed on the way."""

    class Anything(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _details: Any) -> grpc.RpcMethodHandler:
            return grpc.unary_stream_rpc_method_handler(lambda _request, _context: iter(answer))

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Anything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with JournalClient(f"127.0.0.1:{port}", timeout_seconds=10) as client:
            with pytest.raises((CorruptError, UnavailableError)):
                list(client.read(ID, 0, EVENTS))
            with pytest.raises((CorruptError, UnavailableError)):
                client.positions()
    finally:
        server.stop(None).wait()
