"""The Flight server of one process's journals: positions of all, and ranges as raw frames.

Frames travel as they lie on disk, so their checksums guard the wire too, and the reader does the
unpacking. Nothing above a journal's ``safe`` leaves the process. One row of a range holds one whole
frame.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import flight

from flumeng.errors import CorruptError, FlumengError, UserError
from flumeng.journal.errors import AboveSafeError, BelowFloorError, NotServedError
from flumeng.journal.journal import Journal
from flumeng.journal.segment import Window

FRAMES_SCHEMA = pa.schema([pa.field("frame", pa.binary())])
POSITIONS = "positions"
# How an error is told apart on the other side; the first that fits.
ERROR_KINDS: tuple[tuple[str, type[FlumengError]], ...] = (
    ("bad-request", UserError),
    ("not-served", NotServedError),
    ("below-floor", BelowFloorError),
    ("above-safe", AboveSafeError),
    ("corrupt", CorruptError),
)


class JournalServer:
    """Serves from its own threads until ``stop``.

    ``journals`` is called for each request, from those threads.
    """

    def __init__(
        self, host: str, port: int = 0, *, journals: Callable[[], Mapping[str, Journal]]
    ) -> None:
        self._server = _Service((host, port), journals)
        self.address = f"{host}:{self._server.port}"

    def stop(self) -> None:
        """Stop serving; returns when running requests have ended."""
        self._server.shutdown()


class _Service(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(
        self, location: tuple[str, int], journals: Callable[[], Mapping[str, Journal]]
    ) -> None:
        super().__init__(flight.Location.for_grpc_tcp(*location))
        self._journals = journals

    def do_action(self, _context: Any, action: Any) -> Iterator[Any]:
        if action.type != POSITIONS:
            _refuse(UserError(f"no action {action.type!r}; there is {POSITIONS!r}"))
        positions = {
            name: {
                "term": journal.term,
                "floor": journal.floor,
                "safe": journal.safe,
                "closed": journal.closed,
            }
            for name, journal in self._journals().items()
        }
        return iter([flight.Result(json.dumps(positions).encode())])

    def list_actions(self, _context: Any) -> list[tuple[str, str]]:
        return [(POSITIONS, "term, floor, safe end and state of every journal, as JSON")]

    def do_get(self, _context: Any, ticket: Any) -> Any:
        try:
            name, start, end = _parse(ticket.ticket)
            journal = self._journals().get(name)
            if journal is None:
                raise NotServedError(f"journal {name} is not served here")
            windows = journal.read_frames(start, end)
        except FlumengError as error:
            _refuse(error)
        return flight.GeneratorStream(FRAMES_SCHEMA, _batches(windows))


def _batches(windows: Iterator[Window]) -> Iterator[pa.RecordBatch]:
    try:
        for window in windows:
            offsets = pa.array(window.offsets, pa.int32()).buffers()[1]
            frames = pa.Array.from_buffers(
                pa.binary(), len(window.offsets) - 1, [None, offsets, window.buffer]
            )
            yield pa.RecordBatch.from_arrays([frames], schema=FRAMES_SCHEMA)
    except FlumengError as error:
        _refuse(error)


def _parse(ticket: bytes) -> tuple[str, int, int]:
    """Raises UserError for anything but a journal's name and a range."""
    try:
        wanted = json.loads(ticket)
        name, start, end = wanted["journal"], wanted["start"], wanted["end"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError("a ticket is a JSON object with journal, start and end") from error
    numbers = type(start) is int and type(end) is int and 0 <= start <= end
    if not isinstance(name, str) or not numbers:
        raise UserError("a ticket names a journal and a range, 0 <= start <= end")
    return name, start, end


def _refuse(error: FlumengError) -> NoReturn:
    kind = next(kind for kind, type_ in ERROR_KINDS if isinstance(error, type_))
    raise flight.FlightServerError(str(error), extra_info=kind.encode()) from error
