"""Tries to reach the targets of a flow from this host: its sinks, and sources that ask brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast

from flumeng.config import FlowSpec, registry
from flumeng.config.component import Component, Declared
from flumeng.connectors.api.finding import ProbedFinder
from flumeng.connectors.api.sink import Probed, TaskRevision
from flumeng.connectors.ranged.runtime import finder_class
from flumeng.platform.errors import FlumengError
from flumeng.platform.scrubbing import scrub

TARGET_SECONDS = 10.0
MOST_AT_ONCE = 16

Require = Callable[[Component[Declared]], None]
"""Called with a part of a flow; raises UserError when this host does not allow it."""


@dataclass(frozen=True)
class Tried:
    """The result for one target, a ``sink`` or ``source``. ``why``: the error when it failed."""

    kind: str
    name: str
    state: Literal["reached", "failed", "not tried"]
    why: str = ""


def tried(
    spec: FlowSpec, require: Require = lambda _part: None, target_seconds: float = TARGET_SECONDS
) -> Iterator[Tried]:
    """Yield the result for each sink, in the order of the file, then for each Kafka source."""
    parts = [*spec.targets, *(part for part in spec.partitioned if part.name == "kafka")]
    for first in range(0, len(parts), MOST_AT_ONCE):
        trials = [_Trial(part) for part in parts[first : first + MOST_AT_ONCE]]
        for trial in trials:  # loads libraries outside of the time limit
            trial.attempt(partial(trial.prepare, spec.flow, require))
        deadline = time.monotonic() + target_seconds
        for trial in trials:
            threading.Thread(target=trial.run, name="target", daemon=True).start()
        for trial in trials:
            if not trial.ended.wait(max(0.0, deadline - time.monotonic())):
                trial.fail(f"the target did not answer within {target_seconds:g} s")
            yield trial.result


class _Trial:
    """The attempt to reach one target. A thread that waits beyond the time limit is abandoned."""

    def __init__(self, part: Component[Declared]) -> None:
        self._part = part
        self._probe: Callable[[], None] | None = None
        self.result = Tried(part.kind, part.name, "not tried")
        self.ended = threading.Event()

    def prepare(self, flow: str, require: Require) -> None:
        part = self._part
        require(part)
        entry = registry.get(part.kind, part.name)
        if part.kind == "source":
            finder = cast("ProbedFinder", finder_class(part.name))
            self._probe = partial(finder.probe, part.options)
            return
        sink = entry.implementation_class()(part.options, TaskRevision(flow, "", 0))
        if isinstance(sink, Probed):
            self._probe = sink.probe

    def run(self) -> None:
        fit = self.result.state != "failed"
        if fit and self._probe is not None and self.attempt(self._probe):
            self.result = replace(self.result, state="reached")
        self.ended.set()

    def attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
            return True
        except FlumengError as error:
            self.fail(str(error))
        except Exception as error:  # any error of a library is the cause
            self.fail(f"{type(error).__name__}: {error}")
        return False

    def fail(self, why: str) -> None:
        self.result = replace(self.result, state="failed", why=scrub(why))
