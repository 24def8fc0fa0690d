"""Journals as an input: one watch and one connection a server, for all tasks of a collector."""

from __future__ import annotations

from collections.abc import Callable

from flumeng.config import FlowSpec
from flumeng.control.zookeeper import Store
from flumeng.inputs.journals.addresses import Addresses
from flumeng.inputs.journals.executor_tokens import ExecutorTokens
from flumeng.inputs.journals.positions import PositionWatcher, WatchedJournals
from flumeng.inputs.journals.probes import Probes
from flumeng.inputs.journals.reader import JournalReader


class Journals:
    """See ``Input``. ``store`` tells where journals are served, ``executor_tokens`` let executors
    in, unless the cluster is open."""

    def __init__(self, store: Store, executor_tokens: ExecutorTokens | None = None) -> None:
        self._executor_tokens = executor_tokens
        self._watcher = PositionWatcher(Addresses(store))
        self._probes = Probes()

    def positions(self, wake: Callable[[], None]) -> WatchedJournals:
        return WatchedJournals(self._watcher, self._probes, wake)

    def reader(self, spec: FlowSpec) -> JournalReader:
        del spec  # all journals are read alike
        return JournalReader(executor_tokens=self._executor_tokens)
