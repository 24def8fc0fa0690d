"""Exec source: output lines of a command. A guard process (``platform.guard``) ends the command and
its children with the source or worker. Lines not journaled when a worker dies are lost."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
from typing import cast

from flumeng.connectors.api.framing import Framer, Messages
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.api.source import Source, SourceContext
from flumeng.connectors.exec.options import Exec
from flumeng.platform.backoff import Backoff
from flumeng.platform.guarded_commands import GUARD, STOP_SECONDS, environment
from flumeng.platform.scrubbing import scrub

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
RETRY_MOST_SECONDS = 60.0
HEALTHY_SECONDS = 60.0
LAST_OUTPUT_SECONDS = 1.0
STDERR_BYTES = 2048

_STDIN, _STDOUT, _STDERR = 0, 1, 2


class ExecSource(Source):
    def __init__(self, options: Exec, context: SourceContext) -> None:
        self.max_line_bytes = options.max_line_bytes
        self._options = options
        self._context = context
        self._stopping = asyncio.Event()
        self._paused = False
        self._command: _Command | None = None
        self._running: asyncio.Task[None] | None = None
        name = hashlib.blake2b("\0".join(options.command).encode(), digest_size=8).hexdigest()
        self._done_key = f"exec:{name}"
        attrs = (("source", "exec"), ("command", options.command[0]))
        rules = LineRules(options.max_line_bytes, b"\r", keep_empty=True)
        self._origin = Origin(context.hostname, attrs, rules)

    async def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the source; output that the command prints while it ends is taken."""
        self._stopping.set()
        if self._command is not None:
            self._command.end()
        if self._running is not None:
            await self._running

    def pause(self) -> None:
        self._paused = True
        if self._command is not None:
            self._command.pause()

    def resume(self) -> None:
        self._paused = False
        if self._command is not None:
            self._command.resume()

    async def _run(self) -> None:
        mode, loop = self._options.mode, asyncio.get_running_loop()
        if mode == "once" and self._done_key in self._context.state:
            return
        backoff = Backoff(RETRY_SECONDS, RETRY_MOST_SECONDS)
        while not self._stopping.is_set():
            began = loop.time()
            try:
                status, stderr_end = await self._run_once()
            except Exception as error:
                self._context.fail(error)
                return
            if self._stopping.is_set():
                return
            self._report_status(status, stderr_end)
            took = loop.time() - began
            if mode == "once" and status == 0:
                self._submit(Messages(b""), {self._done_key: True})
                return
            if mode == "periodic":
                await self._sleep(max(0.0, self._options.every_seconds - took))
                continue
            if took > HEALTHY_SECONDS:
                backoff.reset()
            await self._sleep(backoff.next())

    async def _run_once(self) -> tuple[int, str]:
        loop = asyncio.get_running_loop()
        _, command = await loop.subprocess_exec(
            lambda: _Command(self),
            *GUARD,
            *self._options.command,
            cwd="/",
            env=environment(),
            start_new_session=True,
        )
        self._command = command
        if self._paused:
            command.pause()
        if self._stopping.is_set():
            command.end()
        healthy = loop.call_later(HEALTHY_SECONDS, self._report_status, 0, "")
        try:
            return await command.ended
        finally:
            healthy.cancel()
            self._command = None

    def _report_status(self, status: int, stderr_end: str) -> None:
        problem = None
        if status:
            problem = f"exec: {self._options.command[0]} ended with status {status}"
            problem += f": {stderr_end}" if stderr_end else ""
        if problem and problem != self.problem:
            log.warning("%s; it is run again", problem)
        if problem != self.problem:
            self.problem = problem
            self._context.changed()

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def take(self, blocks: list[Messages]) -> None:
        for messages in blocks:
            self._submit(messages, None)

    def discard(self, nbytes: int) -> None:
        self._context.counters.discarded_bytes += nbytes

    def _submit(self, messages: Messages, state: dict[str, object] | None) -> None:
        now_us = self._context.clock_us()
        self._context.submit(ReceivedBlock(messages.data, self._origin, now_us, state=state))


class _Command(asyncio.SubprocessProtocol):
    """One run of the command. ``ended`` resolves when it has ended and its output is taken."""

    def __init__(self, source: ExecSource) -> None:
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._source = source
        self._framer = Framer("newline", source.max_line_bytes)
        self._stderr = bytearray()
        self._transport: asyncio.SubprocessTransport
        self._ending = False
        self._exited = False
        self._paused = False
        self._closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDOUT:
            skipped = self._framer.skipped
            self._source.take(self._framer.feed(data, len(data)))
            self._source.discard(self._framer.skipped - skipped)
        else:
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]

    def pipe_connection_lost(self, fd: int, _error: Exception | None) -> None:
        if fd == _STDOUT:
            self._source.take(self._framer.end())

    def process_exited(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)
        self._exited = True
        self._close_later()

    def connection_lost(self, _error: Exception | None) -> None:
        status = self._transport.get_returncode()
        assert status is not None
        stderr_end = " ".join(scrub(self._stderr.decode(errors="replace")).split())
        if not self.ended.done():
            self.ended.set_result((status, stderr_end))

    def pause(self) -> None:
        if self._ending:
            return
        self._paused = True
        if self._closing is not None:
            self._closing.cancel()
        output = self._output()
        if output is not None:
            output.pause_reading()

    def resume(self) -> None:
        self._paused = False
        output = self._output()
        if output is not None:
            output.resume_reading()
        self._close_later()

    def _close_later(self) -> None:
        """Close the output a second after the command's end, since children may keep it open. While
        paused it stays open: it may hold unread data."""
        if self._exited and not self._paused:
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(LAST_OUTPUT_SECONDS, self._transport.close)

    def end(self) -> None:
        """Ask the guard to end the command; kill it when that takes too long."""
        self._ending = True
        self.resume()
        lifeline = self._transport.get_pipe_transport(_STDIN)
        if lifeline is not None:
            lifeline.close()
        asyncio.get_running_loop().call_later(STOP_SECONDS, self._kill)

    def _kill(self) -> None:
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def _output(self) -> asyncio.ReadTransport | None:
        output = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(_STDOUT))
        return None if output is None or output.is_closing() else output
