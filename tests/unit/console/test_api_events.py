"""Server-sent events: pictures for many listeners, for the price of one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flumeng.console.api import events
from flumeng.console.app import ADMIT_THREADS, make_app
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import set_flow_state
from flumeng.control.commands.operator import Operator
from tests.testkit.command_line import NOON
from tests.testkit.filled_cluster import FilledCluster, filled_cluster

SECONDS = 20.0


@pytest.fixture
def cluster(tmp_path: Path) -> FilledCluster:
    return filled_cluster(tmp_path)


@dataclass
class Listener:
    """A client of the stream. A ``slow`` one takes nothing until it is set."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    text: str = ""
    more: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def events(self) -> list[Mapping[str, Any]]:
        lines = [line for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        await self.ready.wait()
        self.text += message.get("body", b"").decode()
        self.more.set()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def until(self, number: int) -> None:
        """Wait for ``number`` events."""
        async with asyncio.timeout(SECONDS):
            while len(self.events) < number:
                self.more.clear()
                await self.more.wait()


@dataclass
class Stream:
    """The app, with any number of listeners."""

    app: Any
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def listen(self, last: str = "", *, ready: bool = True) -> Listener:
        listener = Listener()
        if ready:
            listener.ready.set()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/events",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"last-event-id", last.encode())] if last else [],
            "server": ("127.0.0.1", 80),
            "scheme": "http",
        }
        self.tasks.append(asyncio.create_task(self.app(scope, listener.receive, listener.send)))
        return listener


def run(console: Console, test: Callable[[Stream], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def streaming() -> AsyncIterator[Stream]:
        stream = Stream(make_app(console, lambda _request: Viewer("anonymous")))
        try:
            yield stream
        finally:
            console.pictures.end()
            for task in stream.tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait_for(task, SECONDS)

    async def main() -> None:
        async with streaming() as stream:
            await test(stream)

    asyncio.run(main())


def pause(cluster: FilledCluster, flow: str) -> None:
    operator = Operator(cluster.store, "ann", "", NOON)
    set_flow_state(operator, flow, "suspended")


def test_a_picture_is_an_event_with_the_verdict_and_what_changed(cluster: FilledCluster) -> None:
    async def test(stream: Stream) -> None:
        listener = stream.listen()
        await listener.until(1)
        pause(cluster, "copy")
        await asyncio.to_thread(cluster.console.pictures.take)
        await listener.until(2)
        assert listener.status == 200
        assert listener.headers[b"content-type"].startswith(b"text/event-stream")
        first, second = listener.events
        assert (first["number"], first["flows"], first["nodes"]) == (1, None, None)
        assert first["verdict"]["level"] == "bad"
        assert first["verdict"]["sentence"]
        assert first["time"] == NOON
        assert (second["number"], second["flows"], second["nodes"]) == (2, ["copy"], [])
        assert "id: 2\nevent: picture\n" in listener.text

    run(cluster.console, test)


def test_a_client_that_reconnects_gets_all_changes_since_its_last_event_id(
    cluster: FilledCluster,
) -> None:
    async def test(stream: Stream) -> None:
        stays = stream.listen()
        for number, flow in enumerate(("copy", "web"), 2):
            await stays.until(number - 1)
            pause(cluster, flow)
            await asyncio.to_thread(cluster.console.pictures.take)
        await stays.until(3)
        back = stream.listen("1")
        await back.until(1)
        assert (back.events[0]["number"], back.events[0]["flows"]) == (3, ["copy", "web"])
        other = stream.listen("77")  # of an earlier console
        await other.until(1)
        assert (other.events[0]["number"], other.events[0]["flows"]) == (3, None)
        odd = stream.listen("x" * 1000)
        await odd.until(1)
        assert odd.events[0]["number"] == 3

    run(cluster.console, test)


def test_a_slow_listener_gets_one_event_with_all_that_it_missed(cluster: FilledCluster) -> None:
    async def test(stream: Stream) -> None:
        stays = stream.listen()
        slow = stream.listen()
        await slow.until(1)
        slow.ready.clear()
        for number, flow in enumerate(("copy", "web", "objects"), 2):
            await stays.until(number - 1)
            pause(cluster, flow)
            await asyncio.to_thread(cluster.console.pictures.take)
        await stays.until(4)
        slow.ready.set()
        await slow.until(3)
        numbers = [event["number"] for event in slow.events]
        assert numbers == [1, 2, 4]  # the second was on its way
        assert slow.events[2]["flows"] == ["objects", "web"]

    run(cluster.console, test)


def test_a_hundred_listeners_cost_one_wait(cluster: FilledCluster) -> None:
    waits: list[int] = []
    wait = cluster.console.pictures.newer_than

    def counted(number: int, seconds: float) -> Any:
        waits.append(number)
        return wait(number, seconds)

    async def test(stream: Stream) -> None:
        threads = threading.active_count()
        listeners = [stream.listen() for _ in range(100)]
        for listener in listeners:
            await listener.until(1)
        await asyncio.to_thread(cluster.console.pictures.take)
        for listener in listeners:
            await listener.until(2)
        assert len(waits) <= 2
        assert threading.active_count() <= threads + ADMIT_THREADS + 2
        for listener in listeners:
            listener.gone.set()
        async with asyncio.timeout(SECONDS):
            while stream.app.state.listeners.count:
                await asyncio.sleep(0.01)

    object.__setattr__(cluster.console.pictures, "newer_than", counted)
    run(cluster.console, test)


def test_one_listener_too_many_is_refused(
    cluster: FilledCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_LISTENERS", 2)

    async def test(stream: Stream) -> None:
        for _ in range(2):
            await stream.listen().until(1)
        refused = stream.listen()
        await stream.tasks[-1]
        assert refused.status == 503
        assert refused.headers[b"retry-after"] == b"5"
        assert "2 clients listen already" in refused.text

    run(cluster.console, test)


def test_silence_is_broken_by_a_heartbeat(
    cluster: FilledCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)

    async def test(stream: Stream) -> None:
        listener = stream.listen()
        async with asyncio.timeout(SECONDS):
            while ": still here" not in listener.text:
                listener.more.clear()
                await listener.more.wait()

    run(cluster.console, test)
