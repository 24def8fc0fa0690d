"""A Flight server that answers questions about a process, and serves no events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from flumeng.errors import FlumengError, UserError
from flumeng.journal.server import refuse

Actions = Mapping[str, Callable[[bytes], object]]
"""By name what makes an answer, to be sent as JSON, of what is asked; called by any number of
threads. Each call takes a bounded time."""


class ActionServer:
    """Serves from its own threads, for as long as the process lives. Raises UserError when the
    address cannot be used."""

    def __init__(self, host: str, actions: Actions, port: int = 0) -> None:
        host = f"[{host}]" if ":" in host else host
        try:
            self._service = _Service(host, port, actions)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"cannot listen on {host}:{port}: {error}") from error
        self.address = f"{host}:{self._service.port}"


class _Service(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, host: str, port: int, actions: Actions) -> None:
        self._actions = actions
        super().__init__(flight.Location.for_grpc_tcp(host, port))

    def do_action(self, _context: Any, action: Any) -> Iterator[Any]:
        answer = self._actions.get(action.type)
        if answer is None:
            refuse(
                UserError(f"there is no action {action.type!r}, only {', '.join(self._actions)}")
            )
        try:
            return iter([flight.Result(msgspec.json.encode(answer(action.body.to_pybytes())))])
        except FlumengError as error:
            refuse(error)
