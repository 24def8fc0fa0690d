"""What a collector says of itself to its node: that its work goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from flumeng.agent.node.protocol import ALIVE_SECONDS, Message

log = logging.getLogger(__name__)


class Liveness:
    """Says ``alive``, in a thread of its own, after each round in which all of ``probes`` returned.

    A probe returns when what it asks has answered, as Spark's JVM does. One that raises or does not
    return keeps the collector silent, and the node ends it. ``held`` says what it waits for, if it
    does.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        probes: Sequence[Callable[[], object]],
        held: Callable[[], str] = str,
        seconds: float = ALIVE_SECONDS,
    ) -> None:
        self._send = send
        self._probes = probes
        self._held = held
        self._seconds = seconds

    def start(self) -> None:
        threading.Thread(target=self._run, name="liveness", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                for probe in self._probes:
                    probe()
            except Exception as error:
                log.error("the collector cannot say that it is alive: %s", error)
            else:
                self._send({"type": "alive", "held": self._held()})
            time.sleep(self._seconds)
