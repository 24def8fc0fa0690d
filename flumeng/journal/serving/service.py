"""What all Flight servers here have in common: who is let in, and what errors tell.

With credentials a server speaks TLS only, to those that have a certificate of the same authority.
A client is told which kind of error it is and one sentence; of what nobody has foreseen it is told
nothing, and the log all.

Flight takes certificates when a server is made. So when their files change, the server ends and
another one begins at the same port: calls that run end as when the process stops, and are made
again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeVar

import pyarrow as pa
from pyarrow import flight

from flumeng.journal.log.errors import DeniedError, TapDeniedError
from flumeng.journal.serving.access import Access, Granted, Peer, granted_nothing
from flumeng.journal.serving.wire import ERROR_KINDS, FRAMES_SCHEMA
from flumeng.platform import vital
from flumeng.platform.errors import FlumengError, UserError
from flumeng.platform.security.credentials import Credentials, Keystore
from flumeng.platform.seldom import Seldom

log = logging.getLogger(__name__)

T = TypeVar("T")
Actions = Mapping[str, Callable[[bytes], object]]
"""Flight actions by name: each turns the bytes of a request into an answer that is sent as JSON.
Called by any number of threads; each call takes a bounded time."""
NO_ACTIONS: Actions = MappingProxyType({})
LOOK_SECONDS = 5.0
"""So often it is seen whether there are new certificates."""
REOPEN_SECONDS = 10.0
STOP_SECONDS = 3.0


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """Those that make one of it say what ``act`` and ``read`` do; nothing else is served."""

    def __init__(self, host: str, port: int, own: Credentials | None, granted: Granted) -> None:
        self.access = Access(own, granted)
        if own is None:
            super().__init__(flight.Location.for_grpc_tcp(host, port))
        else:
            super().__init__(
                flight.Location.for_grpc_tls(host, port),
                tls_certificates=[(own.certificate, own.key)],
                verify_client=True,
                root_certificates=own.ca,
            )

    def act(self, peer: Peer, context: Any, action: str, body: bytes) -> Iterator[bytes]:
        """The answers to an action. Raises FlumengError, also while they are taken."""
        raise NotImplementedError

    def read(self, peer: Peer, ticket: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Raises FlumengError, also while batches are taken."""
        del peer, ticket
        raise UserError("there are no events here")

    def exchange(self, peer: Peer, reader: Any, writer: Any) -> None:
        """A conversation, until the client ends it. Raises FlumengError."""
        del peer, reader, writer
        raise UserError("nobody is talked with here")

    def end(self) -> None:
        """Let calls that run end soon."""

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        with _ErrorsToClient():
            peer = self.access.peer(context)
            answers = self.act(peer, context, action.type, action.body.to_pybytes())
            return map(flight.Result, _told(answers))

    def do_get(self, context: Any, ticket: Any) -> Any:
        with _ErrorsToClient():
            schema, batches = self.read(self.access.peer(context), ticket.ticket)
            return flight.GeneratorStream(schema, _told(batches))

    def list_flights(self, _context: Any, _criteria: Any) -> NoReturn:
        _refuse_call()

    def get_flight_info(self, _context: Any, _descriptor: Any) -> NoReturn:
        _refuse_call()

    def get_schema(self, _context: Any, _descriptor: Any) -> Any:
        """Not refused: of this call alone Flight sends whatever is raised with its traceback."""
        return flight.SchemaResult(FRAMES_SCHEMA)

    def list_actions(self, _context: Any) -> NoReturn:
        _refuse_call()

    def do_put(self, _context: Any, _descriptor: Any, _reader: Any, _writer: Any) -> NoReturn:
        _refuse_call()

    def do_exchange(self, context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        with _ErrorsToClient():
            self.exchange(self.access.peer(context), reader, writer)


_denials = Seldom()


class _ErrorsToClient:
    """What is raised in it reaches the client as an error that ``refuse`` makes."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, (DeniedError, TapDeniedError)) and _denials.is_due():
            log.warning("a call is refused, and perhaps more within a minute: %s", error)
        if isinstance(error, FlumengError):
            refuse(error)
        if isinstance(error, Exception) and not isinstance(error, flight.FlightError):
            log.error("a call failed", exc_info=error)
            refuse(FlumengError("this call failed; the log of that process says why"))


def _told(items: Iterator[T]) -> Iterator[T]:
    with _ErrorsToClient():
        yield from items


def refuse(error: FlumengError) -> NoReturn:
    """Raise what Flight can carry: the kind of error and its text, for the client to rebuild."""
    kind = next((kind for kind, type_ in ERROR_KINDS if isinstance(error, type_)), "unavailable")
    info = json.dumps({"kind": kind, "message": str(error)})
    raise flight.FlightServerError(str(error), extra_info=info.encode()) from error


def _refuse_call() -> NoReturn:
    refuse(UserError("journal servers answer do_get and do_action only"))


S = TypeVar("S", bound=Service)
Make = Callable[[str, int, Credentials | None, Granted], S]


class Endpoint(Generic[S]):
    """A service at one address, from when this is made until ``stop``; with a ``keystore`` always
    with the certificates that are there. Raises UserError when these or the address cannot be
    used."""

    def __init__(
        self,
        make: Make[S],
        host: str,
        port: int,
        keystore: Keystore | None,
        granted: Granted = granted_nothing,
    ) -> None:
        self._make, self._granted, self._keystore = make, granted, keystore
        self._host = f"[{host}]" if ":" in host else host
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._changed = keystore.changed if keystore else ()
        self._service = self._open(port, keystore.load() if keystore else None)
        self._port = self._service.port
        self.address = f"{self._host}:{self._port}"
        if keystore is not None:
            vital.start("certificates", self._follow)

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> bool:
        """Stop serving; running requests end with their next window.

        Returns False when one did not: a reader that keeps its connection and does not read cannot
        be ended, and would also hold up a normal exit of the process. Only ``os._exit`` helps then.
        """
        self._stopped.set()
        with self._lock:
            return self._end(timeout_seconds)

    def _open(self, port: int, own: Credentials | None) -> S:
        try:
            return self._make(self._host, port, own, self._granted)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"cannot listen on {self._host}:{port}: {error}") from error

    def _end(self, timeout_seconds: float) -> bool:
        service = self._service
        service.end()
        ending = threading.Thread(target=service.shutdown, name="journal server", daemon=True)
        ending.start()
        ending.join(timeout_seconds)
        if ending.is_alive():
            log.warning("journal server %s: a reader does not read; left behind", self.address)
        return not ending.is_alive()

    def _follow(self) -> None:
        assert self._keystore is not None
        while not self._stopped.wait(LOOK_SECONDS):
            changed = self._keystore.changed
            if changed == self._changed:
                continue
            try:
                own = self._keystore.load()
            except UserError as error:
                log.error("%s; %s serves with the certificate before", error, self.address)
                continue
            self._changed = changed
            self._renew(own)

    def _renew(self, own: Credentials) -> None:
        """Serve at the same port with other certificates."""
        with self._lock:
            if self._stopped.is_set():
                return
            self._end(STOP_SECONDS)
            deadline = time.monotonic() + REOPEN_SECONDS
            while True:
                try:
                    self._service = self._open(self._port, own)
                except UserError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
                    continue
                log.info("%s serves with the certificate until %s", self.address, own.expires)
                return
