"""Runs one source: starts it, notices failures, restarts it after a back-off."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flumeng.agent.ingest.back_pressure import Held
from flumeng.agent.ingest.worker_group import WorkerGroup, spreads
from flumeng.config import Component, registry
from flumeng.config.component import SourceOptions
from flumeng.config.policy import Policy
from flumeng.connectors.api.counters import Counters
from flumeng.connectors.api.deliveries import Deliveries
from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.connectors.api.source import Source, SourceContext
from flumeng.platform.backoff import Backoff
from flumeng.platform.errors import FlumengError, UserError
from flumeng.platform.listening import resolve
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
RETRY_MOST_SECONDS = 30.0


class SourceRunner:
    """Runs one source of a flow while its options stay the same. ``settled_state`` returns the
    flow's source state once submitted blocks are durable; ``note`` changes state outside the
    journal. ``counters`` span all restarts. ``changed``: called after ``running``, ``problem`` or
    ``addresses`` change."""

    def __init__(
        self,
        name: str,
        component: Component[SourceOptions],
        hostname: str,
        group: WorkerGroup,
        policy: Policy,
        *,
        submit: Callable[[ReceivedBlock, Counters], None],
        settled_state: Callable[[], Awaitable[Mapping[str, object]]],
        changed: Callable[[], None],
        held_by: Callable[[], str] = str,
        note: Callable[[Mapping[str, object]], None] = lambda _: None,
        deliveries: Deliveries,
    ) -> None:
        self._name = name
        self.component = component
        self.counters = Counters()
        self._group = group
        self._policy = policy
        self._error: str | None = None
        self._hostname = hostname
        self._submit = submit
        self._settled_state = settled_state
        self._changed = changed
        self._held_by = held_by
        self._note_state = note
        self._deliveries = deliveries
        self._source: Source | None = None
        self._paused = False
        self._stopping = False
        self._trouble: Exception | None = None
        self._failures = TroubleLog(log)
        self._backoff = Backoff(RETRY_SECONDS, RETRY_MOST_SECONDS)
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def _shares(self) -> bool:
        return self._group.size > 1 and spreads(self.component)

    @property
    def running(self) -> bool:
        return self._source is not None

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._source.addresses if self._source else ()

    @property
    def problem(self) -> str | None:
        return self._source.problem if self._source else self._error

    def held(self, now: float, flow: Held) -> Held:
        """Return the pause that the source itself reports, else that of its ``flow``."""
        source = self._source
        if source is None or not source.held_by:
            return flow
        return flow._replace(by=source.held_by, seconds=now - source.held_since)

    def pause(self) -> None:
        self._paused = True
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        self._paused = False
        if self._source is not None:
            self._source.resume()

    async def stop(self) -> None:
        """Stop the source; returns once all events that it received are submitted."""
        self._stopping = True
        self._wake.set()
        await self._task

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._run_once()
            except Exception as error:
                self._note(error)
                await self._backoff.wait(self._wake)
                self._wake.clear()

    async def _run_once(self) -> None:
        self._trouble = None
        await asyncio.to_thread(self._policy.require, self.component)
        state = await self._settled_state()
        context = SourceContext(
            self._hostname,
            state,
            lambda block: self._submit(block, self.counters),
            self._fail,
            self._changed,
            share_ports=self._shares,
            counters=self.counters,
            policy=self._policy,
            held_by=self._held_by,
            note=self._note_state,
            deliveries=self._deliveries,
        )
        make = registry.get("source", self.component.name).implementation_class()
        source: Source = make(self.component.options, context)
        claims = PortClaims(self._group.number)
        try:
            if self._shares:
                await claims.take(self.component.options)
            await source.start()
            self._source, self._error = source, None
            if self._paused:
                source.pause()
            self._changed()
            while not self._stopping and self._trouble is None:
                try:
                    proof_seconds = RETRY_MOST_SECONDS if self._failures.lasts else None
                    await asyncio.wait_for(self._wake.wait(), proof_seconds)
                except TimeoutError:
                    self._backoff.reset()
                    self._failures.end("%s works again", self._name)
                self._wake.clear()
        finally:
            self._source = None
            await source.stop()
            claims.release()
        if self._trouble is not None:
            raise self._trouble

    def _fail(self, error: Exception) -> None:
        self._trouble = error
        self._wake.set()

    def _note(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        expected = isinstance(error, FlumengError)
        self._error = text if expected else f"source {self.component.name}: {text}"
        sentence = "%s fails, retrying: %s"
        self._failures.log(logging.WARNING, sentence, self._name, text, cause=error)
        self._changed()


class PortClaims:
    def __init__(self, number: int) -> None:
        self._number = number
        self._held: list[socket.socket] = []

    async def take(self, options: Any) -> None:
        """Claim the ports of the options. Raises UserError when another source has one."""
        for _, what in options.claims():
            protocol, address = what.split(" ")
            _, _, resolved = await resolve(address, protocol)
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._held.append(claim)
            try:
                claim.bind(f"\0flumeng {protocol} {resolved[:2]} {self._number}".encode())
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise UserError(f"cannot listen on {what}: another source has the port") from error

    def release(self) -> None:
        for claim in self._held:
            claim.close()
        self._held.clear()
