"""A collector says that it is alive only while the loops turn that its work depends on."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import pytest

from flumeng.agent.collector import liveness
from flumeng.agent.collector.measures import Measures
from flumeng.agent.collector.worker import Worker
from flumeng.agent.node.protocol import Message
from tests.testkit.store import FakeStore

CONFIGURE = {"type": "configure", "number": 1, "tasks": []}
PATIENCE_SECONDS = 10.0


class Parent:
    """Sends one configuration."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def send(self, _message: Message) -> None:
        pass

    def messages(self) -> Iterator[dict[str, Any]]:
        yield CONFIGURE
        self._stop.wait(PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["none", "configure", "watch"])
def test_hung_loop_keeps_the_collector_silent(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, hung = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hung.set()
        stop.wait(PATIENCE_SECONDS)

    class HangingMeasures(Measures):
        def keep(self, tasks: Collection[str]) -> None:
            hang(tasks)

    worker = Worker(
        Parent(stop),  # type: ignore[arg-type]
        FakeStore(),
        engine=None,  # type: ignore[arg-type]
        slots=1,
        build=None,  # type: ignore[arg-type]
        positions=None,  # type: ignore[arg-type]
        on_stuck=print,
        measures=HangingMeasures() if loop == "configure" else Measures(),
    )
    if loop == "watch":
        monkeypatch.setattr(worker._scheduler, "check_limits", hang)
    running = threading.Thread(target=worker.run, daemon=True)
    running.start()
    assert hung.wait(PATIENCE_SECONDS if loop != "none" else 0.0) == (loop != "none")
    time.sleep(0.4)
    said: list[Message] = []
    probe = partial(worker.require_turning, hung_seconds=0.3)
    report = partial(liveness.report, said.append, [probe], seconds=0.02)
    threading.Thread(target=report, daemon=True).start()
    time.sleep(0.2)
    assert bool(said) == (loop == "none")
    stop.set()
    running.join(PATIENCE_SECONDS)
