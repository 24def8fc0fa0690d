"""Retention of the dead letters of the flows that run here. Deletes whole files, never a file that
a replay still has to read. Each collector of a flow deletes, since letters may be local."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from flumeng.agent.collector.batch import Pipeline
from flumeng.agent.collector.measures import Measures
from flumeng.config import FlowSpec
from flumeng.config.component import Keep
from flumeng.connectors.dead_letters import purging, replay_lists
from flumeng.connectors.dead_letters.directory import DeadLetterDirectory
from flumeng.control.commands.derived_flows import dead_letters_of
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import FlumengError, UserError

log = logging.getLogger(__name__)

EVERY_SECONDS = 3_600.0
LOOK_SECONDS = 10.0
FAILED = "cannot apply the limits of dead letters of flow %s, trying again in an hour: %s"


class DeadLetterLimits:
    """Applies the retention limits of watched flows. ``watch`` is called by any thread, ``turn`` by
    one. ``clock``: seconds since the epoch."""

    def __init__(
        self, store: Store, measures: Measures, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._measures = measures
        self._clock = clock
        self._pipelines: WeakValueDictionary[str, Pipeline] = WeakValueDictionary()
        self._looked: dict[str, float] = {}
        self._lock = threading.Lock()

    def watch(self, pipeline: Pipeline) -> None:
        if pipeline.spec.dead_letters is not None and pipeline.spec.dead_letters.keep is not None:
            with self._lock:
                self._pipelines[pipeline.spec.flow] = pipeline

    def turn(self, every_seconds: float = EVERY_SECONDS) -> None:
        """Apply the limits of each flow, at most once an hour."""
        with self._lock:
            flows = {flow: pipeline.spec for flow, pipeline in self._pipelines.items()}
        self._looked = {flow: at for flow, at in self._looked.items() if flow in flows}
        now = time.monotonic()
        for flow, spec in flows.items():
            if now - self._looked.get(flow, -every_seconds) >= every_seconds:
                self._looked[flow] = now
                try:
                    self.apply(spec)
                except UserError as error:
                    log.info(FAILED, flow, error)
                except FlumengError as error:
                    log.warning(FAILED, flow, error)
                except Exception as error:  # a fault here harms no events
                    log.exception(FAILED, flow, error)

    def apply(self, spec: FlowSpec) -> int:
        """Delete files over the limits and return their number. Raises CorruptError, UserError,
        UnavailableError."""
        flow, part = spec.flow, spec.dead_letters
        current = dead_letters_of(self._store, flow).current
        assert part is not None
        assert part.keep is not None
        files = part.options.dead_letter_files
        assert files is not None
        directory = DeadLetterDirectory(files.location)
        replays = set(current.values())
        replayed = replay_lists.replays(directory, flow, replays)
        reading = replays & replayed.lists.keys() - replayed.done
        needed = {name for listed in reading for name in replayed.lists[listed][1]}
        outdated = purging.outdated(directory.files(), part.keep, self._clock(), needed)
        for file in outdated:
            purging.remove(directory, file)
        if outdated:
            size = sum(file.bytes for file in outdated)
            summary = f"deleted {len(outdated)} files of dead letters with {size} bytes"
            log.info("flow %s: %s; its limits are %s", flow, summary, _limits_text(part.keep))
            self._measures.dead_letter_files_deleted(flow, len(outdated))
        return len(outdated)


def _limits_text(keep: Keep) -> str:
    days = "" if keep.days is None else f"{keep.days} days"
    size = "" if keep.bytes is None else f"{keep.bytes} bytes"
    return " and ".join(filter(None, (days, size)))
