"""Keeps the dead letters of the flows that this collector runs within what the flows say.

It looks once an hour, beside the batches, and deletes whole files, but none that a replay has still
to read. Every collector of a flow looks: what is gone needs no deleting, and the disk of each host
has letters of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from flumeng.agent.collector.measures import Measures
from flumeng.config import FlowSpec
from flumeng.config.component import Keep
from flumeng.connectors.dead_letters import purging, replay_lists
from flumeng.connectors.dead_letters.directory import LetterDirectory
from flumeng.control.commands.derived_flows import letters_of
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import FlumengError, UserError

log = logging.getLogger(__name__)

EVERY_SECONDS = 3_600.0
LOOK_SECONDS = 10.0
"""A flow that is new here is looked after so soon."""


class Runs(Protocol):
    """What a task runs of a flow: a pipeline."""

    @property
    def spec(self) -> FlowSpec: ...


class LetterLimits:
    """``watch`` is called by any thread, ``follow`` runs in one of its own. ``clock`` gives seconds
    since the epoch."""

    def __init__(
        self, store: Store, measures: Measures, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._measures = measures
        self._clock = clock
        self._pipelines: WeakValueDictionary[str, Runs] = WeakValueDictionary()
        self._looked: dict[str, float] = {}
        self._lock = threading.Lock()

    def watch(self, pipeline: Runs) -> None:
        """For as long as a task has it."""
        if pipeline.spec.dead_letters is not None and pipeline.spec.dead_letters.keep is not None:
            with self._lock:
                self._pipelines[pipeline.spec.flow] = pipeline

    def follow(self) -> None:
        """Never returns."""
        while True:
            time.sleep(LOOK_SECONDS)
            self.turn()

    def turn(self) -> None:
        """Look after the flows whose hour is over."""
        with self._lock:
            flows = {flow: pipeline.spec for flow, pipeline in self._pipelines.items()}
        self._looked = {flow: at for flow, at in self._looked.items() if flow in flows}
        now = time.monotonic()
        for flow, spec in flows.items():
            if now - self._looked.get(flow, -EVERY_SECONDS) >= EVERY_SECONDS:
                self._looked[flow] = now
                try:
                    self.apply(spec)
                except UserError as error:
                    log.info("the dead letters of flow %s are left alone: %s", flow, error)
                except FlumengError as error:
                    log.warning("the dead letters of flow %s stay for now: %s", flow, error)
                except Exception:  # a fault here harms no events
                    log.exception("the dead letters of flow %s stay", flow)

    def apply(self, spec: FlowSpec) -> int:
        """Delete what is too much; gives how many files. A replay or backfill has no letters of its
        own. Raises CorruptError, UserError, UnavailableError."""
        flow, part = spec.flow, spec.dead_letters
        current = letters_of(self._store, flow).current
        assert part is not None
        assert part.keep is not None
        files = part.options.letter_files
        assert files is not None
        directory = LetterDirectory(files.location)
        needed = _still_read(directory, flow, set(current.values()))
        found = purging.outdated(directory.files(), part.keep, self._clock(), needed)
        for file in found:
            purging.remove(directory, file)
        if found:
            size = sum(file.bytes for file in found)
            said = f"{len(found)} files of dead letters with {size} bytes are deleted"
            log.info("flow %s: %s: it keeps %s", flow, said, _said(part.keep))
            self._measures.letter_files_deleted(flow, len(found))
        return len(found)


def _still_read(directory: LetterDirectory, flow: str, current: set[str]) -> set[str]:
    known = replay_lists.replays(directory, flow, current)
    reading = current & known.lists.keys() - known.done
    return {name for listed in reading for name in known.lists[listed][1]}


def _said(keep: Keep) -> str:
    days = "" if keep.days is None else f"{keep.days} days"
    size = "" if keep.bytes is None else f"{keep.bytes} bytes"
    return " and ".join(filter(None, (days, size)))
