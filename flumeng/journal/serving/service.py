"""The base of all Flight servers: TLS, authorization, and errors.

With credentials a server speaks TLS only, to peers of the same authority. Clients get the kind and
message of an error; unexpected errors are only logged. Flight takes certificates only for a new
server, so after a change a new server is opened at the same port; running calls end as at a stop.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from pyarrow import flight

from flumeng.journal.log.errors import DeniedError, TapDeniedError
from flumeng.journal.serving.access import Access, Granted, Peer, granted_nothing
from flumeng.journal.serving.wire import ERROR_KINDS, FRAMES_SCHEMA
from flumeng.platform import fail_fast
from flumeng.platform.errors import FlumengError, UserError
from flumeng.platform.rate_limited_log import RateLimitedLog
from flumeng.platform.security.credentials import Credentials, Keystore
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)

T = TypeVar("T")
Actions = Mapping[str, Callable[[bytes], object]]
"""Flight actions by name, from request bytes to an answer sent as JSON. Thread-safe; each call
takes a bounded time."""
NO_ACTIONS: Actions = MappingProxyType({})
LOOK_SECONDS = 5.0
"""Seconds between two checks for new certificates."""
REOPEN_SECONDS = 10.0
STOP_SECONDS = 3.0


class Service:
    """A Flight server at one address until ``stop``, with the current certificates of ``keystore``.
    Subclasses call this constructor last: it begins to serve, from other threads. Raises UserError
    when the credentials or the address cannot be used."""

    def __init__(
        self, host: str, port: int, keystore: Keystore | None, granted: Granted = granted_nothing
    ) -> None:
        self.host = f"[{host}]" if ":" in host else host
        self.granted = granted
        self.ended = threading.Event()
        """Set when running calls must end; replaced after a change of certificates."""
        self._keystore = keystore
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._changed = keystore.changed if keystore else ()
        self._server = self._open(port, keystore.load() if keystore else None)
        self._port = self._server.port
        self.address = f"{self.host}:{self._port}"
        if keystore is not None:
            fail_fast.start("certificates", self._follow)

    def act(self, peer: Peer, context: Any, action: str, body: bytes) -> Iterator[bytes]:
        """Answer an action. Raises FlumengError, also during iteration."""
        raise NotImplementedError

    def read(
        self, peer: Peer, access: Access, ticket: bytes
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and batches of a ticket. Raises FlumengError, also during iteration."""
        del peer, access, ticket
        raise UserError("this server has no events")

    def exchange(self, peer: Peer, reader: Any, writer: Any) -> None:
        """Serve a bidirectional stream until the client ends it. Raises FlumengError."""
        del peer, reader, writer
        raise UserError("bidirectional streams are not supported here")

    def end(self) -> None:
        self.ended.set()

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> bool:
        """End running requests at their next window; return whether all ended in time. A client
        that does not read keeps its request open and blocks a normal exit: use ``os._exit``."""
        self._stopped.set()
        with self._lock:
            return self._end(timeout_seconds)

    def _open(self, port: int, own: Credentials | None) -> _FlightServer:
        self.ended = threading.Event()
        try:
            return _FlightServer(self, port, own)
        except (pa.ArrowException, OSError) as error:
            how = " with its certificates" if own else ""
            raise UserError(f"cannot listen on {self.host}:{port}{how}: {error}") from error

    def _end(self, timeout_seconds: float) -> bool:
        self.end()
        ending = threading.Thread(target=self._server.shutdown, name="journal server", daemon=True)
        ending.start()
        ending.join(timeout_seconds)
        if ending.is_alive():
            log.warning("server %s: a call has not ended in %g s", self.address, timeout_seconds)
        return not ending.is_alive()

    def _follow(self) -> None:
        assert self._keystore is not None
        trouble = TroubleLog(log)
        while not self._stopped.wait(LOOK_SECONDS):
            changed = self._keystore.changed
            if changed == self._changed:
                continue
            try:
                own = self._keystore.load()
            except UserError as error:
                text = "%s; server %s keeps its previous certificate"
                trouble.log(logging.ERROR, text, error, self.address)
                continue
            trouble.end("server %s: the certificate can be read again", self.address)
            self._changed = changed
            self._renew(own)

    def _renew(self, own: Credentials) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            self._end(STOP_SECONDS)
            deadline = time.monotonic() + REOPEN_SECONDS
            while True:
                try:
                    self._server = self._open(self._port, own)
                except UserError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
                    continue
                log.info("server %s uses a certificate until %s", self.address, own.expires)
                return


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, service: Service, port: int, own: Credentials | None) -> None:
        self._service = service
        self._access = Access(own, service.granted)
        if own is None:
            super().__init__(flight.Location.for_grpc_tcp(service.host, port))
        else:
            super().__init__(
                flight.Location.for_grpc_tls(service.host, port),
                tls_certificates=[(own.certificate, own.key)],
                verify_client=True,
                root_certificates=own.ca,
            )

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        with _ErrorsToClient():
            peer = self._access.peer(context)
            answers = self._service.act(peer, context, action.type, action.body.to_pybytes())
            return map(flight.Result, _guarded(answers))

    def do_get(self, context: Any, ticket: Any) -> Any:
        with _ErrorsToClient():
            peer = self._access.peer(context)
            schema, batches = self._service.read(peer, self._access, ticket.ticket)
            return flight.GeneratorStream(schema, _guarded(batches))

    def list_flights(self, *_call: Any) -> NoReturn:
        refuse(UserError("this server answers do_get, do_action and do_exchange only"))

    get_flight_info = list_actions = do_put = list_flights

    def get_schema(self, _context: Any, _descriptor: Any) -> Any:
        """Return a fixed schema: Flight would send an error of this call with its traceback."""
        return flight.SchemaResult(FRAMES_SCHEMA)

    def do_exchange(self, context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        with _ErrorsToClient():
            self._service.exchange(self._access.peer(context), reader, writer)


_denials = RateLimitedLog(log)


class _ErrorsToClient:
    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, (DeniedError, TapDeniedError)):
            _denials.warning("a call is refused; more within a minute are not logged: %s", error)
        if isinstance(error, FlumengError):
            refuse(error)
        if isinstance(error, Exception) and not isinstance(error, flight.FlightError):
            log.error("a call to a server of this process failed", exc_info=error)
            refuse(FlumengError("the call failed: see the log of the server"))


def _guarded(items: Iterator[T]) -> Iterator[T]:
    with _ErrorsToClient():
        yield from items


def refuse(error: FlumengError) -> NoReturn:
    """Raise a Flight error from which the client rebuilds ``error``."""
    kind = next((kind for kind, type_ in ERROR_KINDS if isinstance(error, type_)), "unavailable")
    info = json.dumps({"kind": kind, "message": str(error)})
    raise flight.FlightServerError(str(error), extra_info=info.encode()) from error
