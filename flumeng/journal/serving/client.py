"""Reads journals from a Flight server: a range arrives complete, in order and intact, or as an
error. A client connects at its first call, so it can be sent to another process before that."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from flumeng.journal.log import reading
from flumeng.journal.log.contract import Position
from flumeng.journal.log.errors import DataLossError
from flumeng.journal.serving import filtered_wire, wire
from flumeng.journal.serving.account import Account
from flumeng.journal.serving.proof import Proof, of_process
from flumeng.journal.serving.wire import NO_CHOKE, Choke
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError

T = TypeVar("T")
_STEP = re.compile(r"^Flight returned [\w ]+ error, with message: ")
_LAST_ERROR = re.compile(r"^failed to connect to all addresses; last error: \w+: (ipv[46]:\S+: )?")


class JournalClient:
    """A connection to one server. Not thread-safe. Calls raise DeniedError, and as ``prove``."""

    def __init__(
        self,
        address: str,
        timeout_seconds: float = 30.0,
        *,
        prove: Callable[[], Proof | None] = of_process,
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        """A call raises UnavailableError after ``timeout_seconds``, ``read`` after so long without
        an event. ``prove`` returns the credentials for a new connection; ``options`` are gRPC's."""
        self._address = address
        self._prove = prove
        self._timeout_seconds = timeout_seconds
        self._channel_options = options
        self._connection: flight.FlightClient | None = None

    def positions(self) -> dict[str, Position]:
        """Return the positions of all journals. Raises UnavailableError, CorruptError."""
        return self._ask(wire.POSITIONS, partial(_each, Position))

    def accounts(self) -> dict[str, Account]:
        """Return the accounts of all journals. Raises UnavailableError, CorruptError."""
        return self._ask(wire.ACCOUNTS, _accounts)

    def replicas(self) -> dict[str, int]:
        """Return the ends of replicas of other nodes. Raises UnavailableError, CorruptError."""
        return self._ask(wire.REPLICAS, _offsets)

    def counters(self) -> list[dict[str, Any]]:
        """Return a row per source or collector task. Raises UnavailableError, CorruptError."""
        return self._ask(wire.COUNTERS, list)

    def offsets(self, flow: str, partitions: Collection[str], to: str) -> dict[str, int]:
        """Return the known offset of each partition at ``earliest``, ``latest``, or a time with its
        zone. Raises UnavailableError, CorruptError, UserError."""
        asked = {"flow": flow, "partitions": list(partitions), "to": to}
        return self._ask(wire.OFFSETS, _offsets, json.dumps(asked).encode())

    def check_targets(self, flow: str, text: str, signature: str) -> list[dict[str, Any]]:
        """Try a flow's targets on the node. Raises UnavailableError, CorruptError, UserError."""
        asked = {"flow": flow, "text": text, "signature": signature}
        return self._ask(wire.CHECK_TARGETS, list, json.dumps(asked).encode())

    def read(
        self,
        journal: str,
        start: int,
        end: int,
        *,
        replayed: bool = False,
        token: str = "",
        choke: Choke = NO_CHOKE,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events of [start, end) in READ_SCHEMA, without lost ones. An executor needs a
        ``token``; a gateway heeds the ``choke``. Raises UnavailableError (no connection or
        progress; NotServedError), DataLossError (BelowFloorError, AboveSafeError), CorruptError and
        DeniedError."""
        seq = start
        while True:
            began = seq
            frames = self._frames(journal, seq, end, token=token, choke=choke)
            try:
                for batch in reading.rows(frames, journal, seq, end, replayed=replayed):
                    seq = batch.column("seq")[-1].as_py() + 1
                    yield batch
            except OutOfTimeError:
                if seq == began:
                    raise
            else:
                return

    def filtered(
        self, journal: str, start: int, end: int, filters: str, choke: Choke = NO_CHOKE
    ) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """Yield the events of [start, end) behind ``filters``, see ``filtered_wire``: pairs of the
        seq below which the range is complete now, and the events since the pair before. The last
        seq is ``end``. Raises as ``read``, and UserError for filters that the site cannot run."""
        seq = start
        while True:
            began = seq
            try:
                ticket = wire.make_ticket(journal, seq, end, filters=filters, choke=choke)
                for chunk in self._chunks(ticket):
                    for reached, events in filtered_wire.events_of(chunk, self._address):
                        if not seq <= reached <= end:
                            raise CorruptError(
                                f"{self._address} sends seq {reached} of the range {seq} to {end}"
                            )
                        seq = reached
                        yield seq, events
            except OutOfTimeError:
                if seq == began:
                    raise
            else:
                if seq < end:
                    raise DataLossError(f"journal {journal}: seqs {seq} to {end} are missing")
                return

    def copy(
        self, journal: str, start: int, end: int, *, aligned: bool = False, choke: Choke = NO_CHOKE
    ) -> Iterator[pa.RecordBatch]:
        """Return the stored frames of [start, end) as they arrive: unchecked, in FRAMES_SCHEMA.
        ``aligned``: see ``Ticket``. Raises as ``read``."""
        return self._chunks(wire.make_ticket(journal, start, end, aligned=aligned, choke=choke))

    def frames(
        self, journal: str, start: int, end: int, *, aligned: bool = False, choke: Choke = NO_CHOKE
    ) -> Iterator[pa.Buffer]:
        """As ``copy``, frame by frame."""
        for chunk in self.copy(journal, start, end, aligned=aligned, choke=choke):
            yield from wire.frames_of(chunk, self._address)

    def ask(self, action: str, body: bytes, understand: Callable[[Any], T]) -> T:
        """Return the understood JSON answer. Raises UnavailableError, CorruptError, UserError."""
        return self._ask(action, understand, body)

    def tap(self, journal: str, start: int, end: int) -> list[pa.RecordBatch]:
        """Return the first events of [start, end) in READ_SCHEMA, within the limits of taps. Raises
        as ``read``, and TapDeniedError, TapsBusyError; UserError from old servers."""
        batches: list[pa.RecordBatch] = []
        seq = start
        frames = self._frames(journal, start, end, tapped=True)
        try:
            for batch in reading.rows(frames, journal, start, end, replayed=False):
                batches.append(batch)
                seq = batch.column("seq")[-1].as_py() + 1
        except DataLossError:
            if seq == start:
                raise
        return batches

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> JournalClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _ask(self, action: str, understand: Callable[[Any], T], body: bytes = b"") -> T:
        try:
            results = list(self._connect().do_action(flight.Action(action, body), self._options()))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._translate(error) from error
        try:
            return understand(json.loads(b"".join(result.body for result in results)))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptError(
                f"this flumeng cannot read the answer of {self._address} to {action}"
            ) from error

    def _frames(
        self,
        journal: str,
        start: int,
        end: int,
        *,
        tapped: bool = False,
        token: str = "",
        choke: Choke = NO_CHOKE,
    ) -> Iterator[pa.Buffer]:
        """Yield frames as stored."""
        ticket = wire.make_ticket(journal, start, end, tapped=tapped, token=token, choke=choke)
        for chunk in self._chunks(ticket):
            yield from wire.frames_of(chunk, self._address)

    def _chunks(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """Yield record batches. The time limit includes the caller's work in between."""
        try:
            reader = self._connect().do_get(flight.Ticket(ticket), self._options())
            try:
                for chunk in reader:
                    yield chunk.data
            finally:
                reader.cancel()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._translate(error) from error

    def _connect(self) -> flight.FlightClient:
        if self._connection is None:
            self._connection = connect(self._address, self._prove(), self._channel_options)
        return self._connection

    def _options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=self._timeout_seconds)

    def _translate(self, error: Exception) -> FlumengError:
        info = getattr(error, "extra_info", None)
        if info:
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                document = json.loads(info)
                kind = dict(wire.ERROR_KINDS)[document["kind"]]
                return kind(f"server {self._address}: {document['message']}")
        text = _plain(str(error))
        if isinstance(error, flight.FlightTimedOutError):
            return OutOfTimeError(
                f"server {self._address} made no progress in {self._timeout_seconds:g} s: {text}"
            )
        if isinstance(error, OSError) and not isinstance(error, flight.FlightError):
            return CorruptError(f"the answer of {self._address} is not Arrow Flight: {text}")
        return UnavailableError(f"server {self._address} does not answer: {text}")


def _plain(text: str) -> str:
    """Return the cause in a text of gRPC's, which repeats the address and its own steps."""
    text = text.partition(" gRPC client debug context")[0].rstrip(".")
    text = _STEP.sub("", text)
    return _LAST_ERROR.sub("", text)


def connect(
    address: str, proof: Proof | None, options: Sequence[tuple[str, int]] = ()
) -> flight.FlightClient:
    """Return a client, which connects at its first call; ``proof`` is None in an open cluster."""
    if proof is None:
        return flight.FlightClient(f"grpc://{address}", generic_options=list(options))
    return flight.FlightClient(
        f"grpc+tls://{address}",
        tls_root_certs=proof.ca,
        cert_chain=proof.certificate,
        private_key=proof.key,
        generic_options=list(options),
    )


class OutOfTimeError(UnavailableError):
    """A call reached its time limit; ``read`` continues with another call after progress."""


def _accounts(accounts: dict[str, dict[str, Any]]) -> dict[str, Account]:
    """Decode accounts; unknown fields, of a newer server, are ignored."""
    names = {field.name for field in dataclasses.fields(Account)}
    return {
        name: Account(**{key: value for key, value in fields.items() if key in names})
        for name, fields in accounts.items()
    }


def _offsets(offsets: dict[str, Any]) -> dict[str, int]:
    return {name: int(offset) for name, offset in offsets.items()}


def _each(kind: Callable[..., T], documents: dict[str, dict[str, Any]]) -> dict[str, T]:
    return {name: kind(**fields) for name, fields in documents.items()}
