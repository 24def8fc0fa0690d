"""The destination of a flow's events: a journal of the node, or Kafka. All calls block."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.config import FlowSpec, registry
from flumeng.config.component import Component
from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.contract import Appendable
from flumeng.journal.log.encryption import Keyring
from flumeng.journal.log.limits import MAX_BYTES, MEMORY_BYTES, Limits
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.platform.errors import FlumengError

log = logging.getLogger(__name__)


class FlowJournal(Protocol):
    """Belongs to the flow from ``take`` to ``give_back``."""

    @property
    def appendable(self) -> Appendable[Any]: ...

    def fits(self, spec: FlowSpec) -> bool:
        """Whether it suits a flow with this ``spec``; then it adopts its limits."""

    def give_back(self, acked: int, *, failed: bool) -> None:
        """Called after the last append. A ``failed`` one is reopened when it is next taken."""


def take(
    store: JournalStore, flow: str, spec: FlowSpec, policy: Policy = UNRESTRICTED
) -> FlowJournal:
    """Raises CorruptError, UnavailableError, UserError, OSError."""
    if spec.journal.kafka is not None:
        part = Component("journal", "kafka", spec.journal.kafka)
        policy.require(part)
        cls = registry.get("journal", part.name).implementation_class()  # loads librdkafka
        journal: FlowJournal = cls(flow, part.options)
        store.close_of(flow)
        return journal
    return OnNode(store, flow, spec)


class OnNode:
    """On the node's disk, or in the worker's memory."""

    def __init__(self, store: JournalStore, flow: str, spec: FlowSpec) -> None:
        self._store = store
        durability, limits = _promised(spec)
        self._encryption = spec.journal.encryption
        keyring = None
        if self._encryption is not None:
            keyring = Keyring.resolve(self._encryption.references)
        self._journal = store.take(flow, durability, limits, keyring)
        self._keep_to(spec, limits)

    @property
    def appendable(self) -> Appendable[Any]:
        return self._journal

    def fits(self, spec: FlowSpec) -> bool:
        durability, limits = _promised(spec)
        if spec.journal.kafka is not None or self._journal.durability != durability:
            return False
        if spec.journal.encryption != self._encryption:
            return False
        self._keep_to(spec, limits)
        return True

    def _keep_to(self, spec: FlowSpec, limits: Limits) -> None:
        self._journal.limits = limits
        if isinstance(self._journal, ReplicatedJournal):
            self._journal.require_in_sync(spec.replicas.min_in_sync)

    def give_back(self, acked: int, *, failed: bool) -> None:
        try:
            self._store.give_back(self._journal, failed=failed)
            self._store.trim(self._journal.id, acked)
        except (FlumengError, OSError) as error:
            log.error("journal %s: %s", self._journal.id, error)


def _promised(spec: FlowSpec) -> tuple[Durability, Limits]:
    default = MEMORY_BYTES if spec.durability == "memory" else MAX_BYTES
    options = spec.journal
    limits = Limits(options.max_bytes or default, options.retain_seconds, options.retain_bytes)
    return spec.durability, limits
