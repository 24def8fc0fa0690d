"""Names of flows, nodes and tasks for completion, which never waits longer than
``PATIENCE_SECONDS`` and never fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from flumeng.control.snapshot.task_map import read_plans
from flumeng.platform.errors import FlumengError
from zkschema import paths

if TYPE_CHECKING:
    from flumeng.control.zookeeper import Store

PATIENCE_SECONDS = 1.0

Names = Mapping[str, Sequence[str]]
"""Kind (``flow``, ``node``, ``task``) -> names."""


def read(store: Store) -> Names:
    """Raises ``UnavailableError``."""
    flows = store.children(paths.flows())
    tasks = [
        f"{flow}/{task}"
        for flow, plan in read_plans(store, flows).items()
        for task in sorted(plan.value.tasks)
    ]
    return {"flow": flows, "node": store.children(paths.nodes()), "task": tasks}


class Lookup:
    """Reads in the background; ``known``: the last result."""

    def __init__(self, ask: Callable[[], Names]) -> None:
        self.known: Names = {}
        self._ask = ask
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read again, unless a read is under way."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="names", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> Names:
        if self._thread is not None:
            self._thread.join(seconds)
        return self.known

    def _run(self) -> None:
        try:
            self.known = self._ask()
        except FlumengError:
            return
