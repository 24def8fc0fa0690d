"""Journals as an input: one watch and one connection a server, for all tasks of a collector."""

from __future__ import annotations

from collections.abc import Callable

from flumeng.config import FlowSpec
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.executor_tokens import ExecutorTokens
from flumeng.connectors.journals.positions import PositionWatcher, WatchedJournals
from flumeng.connectors.journals.probes import Probes
from flumeng.connectors.journals.reader import JournalReader
from flumeng.control.zookeeper import Store


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
