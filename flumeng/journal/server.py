"""The Flight server of one process's journals: where they stand, and ranges as raw frames.

Frames travel as they lie on disk, so their checksums guard the wire too, and the reader does the
unpacking. Nothing above a journal's ``safe`` leaves the process. One row of a range holds one whole
frame.

Each call that runs has a thread of gRPC's, whose number Flight cannot bound for Python. So the
number of calls that last is bounded here: what is refused, or answered once instead of watched,
gives its thread back at once.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
from pyarrow import flight

from flumeng.errors import CorruptError, FlumengError, UnavailableError, UserError
from flumeng.journal import reading
from flumeng.journal.account import Account
from flumeng.journal.errors import (
    AboveSafeError,
    BelowFloorError,
    DataLossError,
    NotServedError,
    TapDeniedError,
    TapsBusyError,
)
from flumeng.journal.log import Log
from flumeng.journal.names import is_id
from flumeng.journal.past import Note
from flumeng.journal.places import Places
from flumeng.journal.position import Position
from flumeng.journal.segment import Window
from flumeng.journal.taps import Taps
from flumeng.journal.watch import Watch, WatchRequest, parse_request

log = logging.getLogger(__name__)

FRAMES_SCHEMA = pa.schema([pa.field("frame", pa.binary())])
POSITIONS = "positions"
ACCOUNTS = "accounts"
COUNTERS = "counters"
OFFSETS = "offsets"
WATCH = "watch"
MAX_TICKET_BYTES = 4096
WATCHES_AT_ONCE = 64
"""Those beyond are answered once; their readers ask again after a while."""
ACCOUNT_SECONDS = 0.5
"""So long it may take to read the oldest events of journals, which people want to know."""
READS_AT_ONCE = 64
"""Those beyond are refused as unavailable."""
STILL_SECONDS = 120.0
"""A call whose reader took nothing for so long does not count."""
# What an error is called on the wire; the first that fits.
ERROR_KINDS: tuple[tuple[str, type[FlumengError]], ...] = (
    ("tap-denied", TapDeniedError),
    ("taps-busy", TapsBusyError),
    ("bad-request", UserError),
    ("not-served", NotServedError),
    ("below-floor", BelowFloorError),
    ("above-safe", AboveSafeError),
    ("data-loss", DataLossError),
    ("corrupt", CorruptError),
    ("unavailable", UnavailableError),
)


class JournalServer:
    """Serves from its own threads, from when it is made until ``stop``.

    ``journals`` is called for each request, from those threads, and gives a mapping that is
    replaced and never changed. ``counters`` is called in the same way, and gives what else a
    process wants to tell of itself, as JSON; ``acked`` gives up to where the flow of a journal has
    acked it, ``minute_ago`` how far it was then.
    ``may_tap`` says of which flows people may look at events.
    Raises UserError when the address cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        journals: Callable[[], Mapping[str, Log]],
        counters: Callable[[], list[dict[str, Any]]] = list,
        acked: Callable[[Log], int] = lambda journal: journal.acked,
        minute_ago: Callable[[str], Note | None] = lambda _journal: None,
        may_tap: Callable[[str], bool] = lambda _flow: True,
    ) -> None:
        host = f"[{host}]" if ":" in host else host
        try:
            self._service = _Service(
                host,
                port,
                journals,
                counters,
                acked=acked,
                minute_ago=minute_ago,
                taps=Taps(may_tap),
            )
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"cannot listen on {host}:{port}: {error}") from error
        self.address = f"{host}:{self._service.port}"

    def stop(self, timeout_seconds: float = 3.0) -> bool:
        """Stop serving; running requests end with their next window.

        Returns False when one did not: a reader that keeps its connection and does not read cannot
        be ended, and would also hold up a normal exit of the process. Only ``os._exit`` helps then.
        """
        self._service.stop()
        ending = threading.Thread(target=self._service.shutdown, name="journal server", daemon=True)
        ending.start()
        ending.join(timeout_seconds)
        if ending.is_alive():
            log.warning("journal server %s: a reader does not read; left behind", self.address)
        return not ending.is_alive()


class _Service(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(
        self,
        host: str,
        port: int,
        journals: Callable[[], Mapping[str, Log]],
        counters: Callable[[], list[dict[str, Any]]],
        *,
        acked: Callable[[Log], int],
        minute_ago: Callable[[str], Note | None],
        taps: Taps,
    ) -> None:
        self._stopping = False
        self._acked = acked
        self._minute_ago = minute_ago
        self._taps = taps
        self._journals = journals
        self._answers: Mapping[str, Callable[[], object]] = {
            POSITIONS: self._positions,
            ACCOUNTS: self._accounts,
            COUNTERS: counters,
        }
        self._watches: set[Watch] = set()
        self._watching = Places(WATCHES_AT_ONCE, STILL_SECONDS)
        self._reading = Places(READS_AT_ONCE, STILL_SECONDS)
        super().__init__(flight.Location.for_grpc_tcp(host, port))

    def stop(self) -> None:
        self._stopping = True
        for watch in list(self._watches):
            watch.end()

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        if action.type == WATCH:
            try:
                return self._watch(context, parse_request(action.body.to_pybytes()))
            except UserError as error:
                refuse(error)
        answer = self._answers.get(action.type)
        if answer is None:
            known = ", ".join([*self._answers, WATCH])
            refuse(UserError(f"there is no action {action.type!r}, only {known}"))
        return iter([flight.Result(msgspec.json.encode(answer()))])

    def _watch(self, context: Any, request: WatchRequest) -> Iterator[Any]:
        watch = Watch(self._journals, request)
        self._watches.add(watch)  # before the server's end is looked at, so that it ends this too
        lasting = not self._stopping and self._watching.take(watch)
        try:
            for answer in watch.answers(once=not lasting, gone=context.is_cancelled):
                yield flight.Result(msgspec.json.encode(answer))
                if lasting:
                    self._watching.moved(watch)
        finally:
            self._watches.discard(watch)
            self._watching.leave(watch)

    def _positions(self) -> dict[str, Position]:
        return {name: Position.of(journal) for name, journal in self._journals().items()}

    def _accounts(self) -> dict[str, Account]:
        journals, until = self._journals(), time.monotonic() + ACCOUNT_SECONDS
        return {
            name: _account(
                journal,
                self._acked(journal),
                self._minute_ago(name),
                reads=time.monotonic() < until,
            )
            for name, journal in journals.items()
        }

    def do_get(self, _context: Any, ticket: Any) -> Any:
        try:
            name, start, end, tapped = parse_ticket(ticket.ticket)
            if tapped:
                self._taps.admit(name)
            journal = self._journals().get(name)
            if journal is None:
                raise NotServedError(f"journal {name} is not served here")
            windows = (
                self._taps.windows(journal, start, end)
                if tapped
                else self._counted(journal.read_frames(start, end))
            )
        except FlumengError as error:
            refuse(error)
        return flight.GeneratorStream(FRAMES_SCHEMA, self._batches(windows))

    def _counted(self, windows: Iterator[Window]) -> Iterator[Window]:
        """The same, as one of the reads that run at once."""
        if not self._reading.take(windows):
            raise UnavailableError(f"{READS_AT_ONCE} reads run here already")
        try:
            for window in windows:
                yield window
                self._reading.moved(windows)
        finally:
            self._reading.leave(windows)

    def _batches(self, windows: Iterator[Window]) -> Iterator[pa.RecordBatch]:
        """One record batch per window: its buffer is the one that was read into."""
        try:
            for window in windows:
                if self._stopping:
                    raise UnavailableError("the server is stopping")
                # Not pa.array: that imports pandas, 50 MB in every ingest worker.
                offsets = pa.py_buffer(array("i", window.offsets))
                frames = pa.Array.from_buffers(
                    pa.binary(), len(window.offsets) - 1, [None, offsets, window.buffer]
                )
                yield pa.RecordBatch.from_arrays([frames], schema=FRAMES_SCHEMA)
        except FlumengError as error:
            refuse(error)


def _account(journal: Log, acked: int, past: Note | None, *, reads: bool) -> Account:
    """``reads``: the oldest event that is not acked is read, to tell when it came."""
    safe, readable = journal.safe, journal.readable
    return Account(
        term=journal.term,
        durability=journal.durability,
        floor=journal.floor,
        acked=acked,
        safe=safe,
        bytes=journal.bytes,
        max_bytes=journal.limits.max_bytes,
        lost=journal.lost,
        waits_at=readable if readable < safe else None,
        closed=journal.closed,
        oldest_unacked_us=received_us(journal, acked) if reads and acked < readable else None,
        acked_minute_ago=past.acked if past else None,
        safe_minute_ago=past.safe if past else None,
    )


def received_us(journal: Log, seq: int) -> int | None:
    """When an event was received; None when it cannot be told."""
    try:
        frames = (frame for window in journal.read_frames(seq, seq + 1) for frame in window)
        for _, batch in reading.cut(frames, journal.id, seq, seq + 1):
            return int(batch.column("ts")[0].value)
    except (FlumengError, OSError):
        pass
    return None


def make_ticket(journal: str, start: int, end: int, *, tapped: bool = False) -> bytes:
    """What ``parse_ticket`` reads. That of a tap is none to a server that knows no taps."""
    wanted = {"journal": journal, "start": start, "end": end}
    return json.dumps({"tap": wanted} if tapped else wanted).encode()


def parse_ticket(ticket: bytes) -> tuple[str, int, int, bool]:
    """A journal's id, a range, and whether a tap asks. Raises UserError for anything else."""
    if len(ticket) > MAX_TICKET_BYTES:
        raise UserError(f"a ticket has at most {MAX_TICKET_BYTES} bytes")
    try:
        wanted = json.loads(ticket)
        tapped = "tap" in wanted
        if tapped:
            wanted = wanted["tap"]
        name, start, end = wanted["journal"], wanted["start"], wanted["end"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError("a ticket is a JSON object with journal, start and end") from error
    if not (isinstance(name, str) and is_id(name) and type(start) is int and type(end) is int):
        raise UserError("a ticket holds a journal's id and two whole numbers")
    if not 0 <= start <= end:
        raise UserError(f"a ticket's range is 0 <= start <= end, not {start} to {end}")
    return name, start, end, tapped


def refuse(error: FlumengError) -> NoReturn:
    """Raise what Flight can carry: the kind of error and its text, for the client to rebuild."""
    kind = next((kind for kind, type_ in ERROR_KINDS if isinstance(error, type_)), "unavailable")
    info = json.dumps({"kind": kind, "message": str(error)})
    raise flight.FlightServerError(str(error), extra_info=info.encode()) from error
