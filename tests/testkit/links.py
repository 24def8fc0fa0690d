"""Links to ZooKeeper servers, as long and as bad as those between data centres, hundreds at once.

A link is a TCP proxy of its own in front of one server. Its delay is one of the way, for each
direction and for the handshake: bytes that are sent together arrive together, however long the way.
All links live in one thread, and may be changed from any.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TypeVar, cast

from tests.testkit.counting import PING, Conversation, Counts, total

HOST = "127.0.0.1"
START_SECONDS = 10.0
BACKLOG = 1000

T = TypeVar("T")


class Links:
    """One link for each server: name -> port. Close it in any case, or use it as a context.

    ``delay_seconds`` is the delay of one direction. ``on_request`` is called with a link's name and
    a request's opcode before the request is forwarded, in the thread of the links: until it
    returns, nothing is forwarded.
    """

    def __init__(self, ports: Mapping[str, int], delay_seconds: float = 0.0) -> None:
        self.delay_seconds = delay_seconds
        self.on_request: Callable[[str, int], None] = lambda _name, _opcode: None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._links = {name: Link(name, port, self) for name, port in ports.items()}

    def __getitem__(self, name: str) -> Link:
        return self._links[name]

    def __enter__(self) -> Links:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def carry_out(self, act: Callable[[], T]) -> T:
        """Run it in the thread of the links, and wait for its end."""

        async def done() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(START_SECONDS)


class Link:
    """``address`` is for clients and never changes. ``counts`` sums all connections so far;
    ``connections`` has the counts of each."""

    def __init__(self, name: str, port: int, links: Links) -> None:
        self.name = name
        self.port = port
        self.links = links
        self.frozen = False
        self.drops_replies = False
        self.loses_every = self.loses_in = 0
        self.open: set[Connection] = set()
        self.connections: list[Counts] = []
        self._place = _bound(0)
        """Keeps the port while there is no listener."""
        self.address = f"{HOST}:{self._place.getsockname()[1]}"
        self._listener: asyncio.Server | None = None
        self._listen()

    @property
    def counts(self) -> Counts:
        return self.links.carry_out(lambda: total(self.connections))

    def drop_replies(self) -> None:
        """Requests are carried out and their replies dropped. New connections are treated alike."""
        self.drops_replies = True

    def lose_replies(self, every: int) -> None:
        """From now on each ``every``-th request other than pings is carried out, and its connection
        ends instead of the reply."""
        self.loses_in = self.loses_every = every

    def freeze(self) -> None:
        """Connections are accepted, and no bytes arrive on either side until ``heal``."""
        self.frozen = True

    def cut(self) -> None:
        """End all connections; new ones work."""
        self.links.carry_out(self._end_all)

    def refuse(self) -> None:
        """All connections end and new ones are refused, as on a host without a server."""
        self.links.carry_out(self._refuse)

    def heal(self) -> None:
        """Delayed bytes arrive, connections with losses end, and new ones work."""
        self.links.carry_out(self._heal)
        if self._listener is None:
            self._listen()

    def close(self) -> None:
        self.refuse()
        self._place.close()

    def _listen(self) -> None:
        loop = self.links._loop
        port = self._place.getsockname()[1]
        listening = loop.create_server(lambda: Client(self), sock=_bound(port), backlog=BACKLOG)
        future = asyncio.run_coroutine_threadsafe(listening, loop)
        self._listener = future.result(START_SECONDS)

    def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._end_all()

    def _end_all(self) -> None:
        for connection in list(self.open):
            connection.end()

    def _heal(self) -> None:
        self.frozen = self.drops_replies = False
        self.loses_every = self.loses_in = 0
        for connection in list(self.open):
            connection.heal()


class Connection:
    """One client's way to the server, and back."""

    def __init__(self, link: Link, client: asyncio.Transport) -> None:
        self.link = link
        self.loop = link.links._loop
        self.conversation = Conversation(self._on_request)
        self.forth = Way(self, self._reach_server)
        self.forth.not_before = self.loop.time() + 2 * link.links.delay_seconds
        self.back = Way(self, self._reach_client)
        self.back.target = client
        self._client = client
        self._server: asyncio.Transport | None = None
        self._lost_after = 0
        self._spoiled = False
        self._ends_left = 2
        link.open.add(self)
        link.connections.append(self.conversation.counts)
        self._connecting = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            transport, _ = await self.loop.create_connection(
                lambda: Server(self), HOST, self.link.port
            )
        except OSError:
            self.end()
            return
        self._server = self.forth.target = transport
        self.forth.go_on()

    def ask(self, data: bytes) -> None:
        self.conversation.ask(data)
        self.forth.take(data)

    def lose(self, way: Way) -> None:
        """The sender of this way is gone: the other end closes after all earlier bytes."""
        way.take(None)
        self._ends_left -= 1
        if self._ends_left == 0:
            self.link.open.discard(self)

    def end(self) -> None:
        """Close both ends at once."""
        self.link.open.discard(self)
        self._connecting.cancel()
        for transport in (self._client, self._server):
            if transport is not None:
                transport.abort()

    def heal(self) -> None:
        self._lost_after = 0
        if self._spoiled:
            self.end()
            return
        self.forth.go_on()
        self.back.go_on()

    def _on_request(self, opcode: int) -> None:
        if self.link.loses_every and opcode != PING:
            self.link.loses_in -= 1
            if self.link.loses_in == 0:
                self.link.loses_in = self.link.loses_every
                self._lost_after = self._lost_after or self.conversation.counts.operations
        self.link.links.on_request(self.link.name, opcode)

    def _reach_server(self, data: bytes) -> None:
        cast(asyncio.Transport, self._server).write(data)

    def _reach_client(self, data: bytes) -> None:
        if self.link.drops_replies:
            self._spoiled = True
            return
        self.conversation.answer(data)
        if 0 < self._lost_after <= self.conversation.replies:
            self.end()
            return
        self._client.write(data)


class Way:
    """One direction: bytes arrive in order, each at its time; ``None`` is the end."""

    def __init__(self, connection: Connection, arrive: Callable[[bytes], None]) -> None:
        self.target: asyncio.Transport | None = None
        self.not_before = 0.0
        self._connection = connection
        self._arrive = arrive
        self._under_way: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def take(self, data: bytes | None) -> None:
        left_at = max(self._connection.loop.time(), self.not_before)
        due = left_at + self._connection.link.links.delay_seconds
        self._under_way.append((due, data))
        if self._timer is None:
            self.go_on()

    def go_on(self) -> None:
        """Deliver the bytes that are due, and schedule the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = self._connection.loop
        while self._under_way and self.target is not None and not self._connection.link.frozen:
            due, data = self._under_way[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.go_on)
                return
            self._under_way.popleft()
            if data is None:
                self.target.close()
            elif not self.target.is_closing():
                self._arrive(data)


class Client(asyncio.Protocol):
    """The bytes from the client of a link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection = Connection(self._link, cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._connection.ask(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._connection.lose(self._connection.forth)


class Server(asyncio.Protocol):
    """The bytes from the server to the client of a link."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        self._connection.back.take(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._connection.lose(self._connection.back)


def _bound(port: int) -> socket.socket:
    """Several sockets may be bound to a port; a client reaches the listening one."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    return bound
