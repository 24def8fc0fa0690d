"""Reads journals from a Flight server and checks everything it gets.

A range comes whole, in order and unharmed, or as an error. Nothing is opened before the first call,
so a client may be made in one process and used in another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyarrow import flight

from flumeng.errors import FlumengError, UnavailableError
from flumeng.journal import reading
from flumeng.journal.account import Account
from flumeng.journal.server import ACCOUNTS, COUNTERS, ERROR_KINDS, POSITIONS


@dataclass(frozen=True, slots=True)
class Position:
    """What a server says of a journal: events of [floor, safe) can be read."""

    term: int
    floor: int
    safe: int
    closed: bool


class JournalClient:
    """A connection to one server. Not for use by several threads at once."""

    def __init__(self, address: str, timeout_seconds: float = 30.0) -> None:
        """``timeout_seconds`` without progress end a call with UnavailableError."""
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._connection: flight.FlightClient | None = None

    def positions(self) -> dict[str, Position]:
        """Where all journals of the server stand. Raises UnavailableError."""
        positions = self._act(POSITIONS)
        return {name: Position(**position) for name, position in positions.items()}

    def accounts(self) -> dict[str, Account]:
        """What all journals of the server hold. Raises UnavailableError."""
        return {name: Account(**account) for name, account in self._act(ACCOUNTS).items()}

    def counters(self) -> list[dict[str, Any]]:
        """What the server's process counts, a row for each source. Raises UnavailableError."""
        counters: list[dict[str, Any]] = self._act(COUNTERS)
        return counters

    def read(
        self, journal: str, start: int, end: int, *, replayed: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield exactly the events of [start, end) in READ_SCHEMA.

        May take as long as the caller does. Raises UnavailableError (no connection, no progress;
        NotServedError), DataLossError (events of the range are gone; BelowFloorError,
        AboveSafeError) and CorruptError.
        """
        seq = start
        while True:
            began = seq
            frames = self._frames(journal, seq, end)
            try:
                for batch in reading.rows(frames, journal, seq, end, replayed=replayed):
                    seq = batch.column("seq")[-1].as_py() + 1
                    yield batch
            except _OutOfTimeError:
                if seq == began:
                    raise
            else:
                return

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> JournalClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _act(self, action: str) -> Any:
        try:
            (result,) = self._connect().do_action(flight.Action(action, b""), self._options())
        except (flight.FlightError, pa.ArrowException) as error:
            raise self._translate(error) from error
        return json.loads(result.body.to_pybytes())

    def _frames(self, journal: str, start: int, end: int) -> Iterator[pa.Buffer]:
        """One call. Its time limit spans the caller's own work between frames as well."""
        ticket = json.dumps({"journal": journal, "start": start, "end": end}).encode()
        try:
            reader = self._connect().do_get(flight.Ticket(ticket), self._options())
            try:
                for chunk in reader:
                    yield from _split(chunk.data.column(0))
            finally:
                reader.cancel()
        except (flight.FlightError, pa.ArrowException) as error:
            raise self._translate(error) from error

    def _connect(self) -> flight.FlightClient:
        if self._connection is None:
            self._connection = flight.FlightClient(f"grpc://{self._address}")
        return self._connection

    def _options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=self._timeout_seconds)

    def _translate(self, error: Exception) -> FlumengError:
        info = getattr(error, "extra_info", None)
        if info:
            told = json.loads(info)
            return dict(ERROR_KINDS)[told["kind"]](f"{self._address}: {told['message']}")
        text = str(error).partition(" gRPC client debug context")[0]
        if isinstance(error, flight.FlightTimedOutError):
            return _OutOfTimeError(
                f"{self._address} made no progress in {self._timeout_seconds:g} s: {text}"
            )
        return UnavailableError(f"{self._address} does not answer: {text}")


class _OutOfTimeError(UnavailableError):
    """A call reached its time limit; with progress made, another one goes on from there."""


def _split(frames: pa.BinaryArray) -> Iterator[pa.Buffer]:
    """The rows of one batch as buffers, without a copy."""
    _, offsets, data = frames.buffers()
    bounds = memoryview(offsets).cast("i")[frames.offset : frames.offset + len(frames) + 1]
    for row in range(len(frames)):
        yield data.slice(bounds[row], bounds[row + 1] - bounds[row])
