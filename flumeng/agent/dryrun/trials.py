"""Dry runs for viewers of the console: each in a process of its own, which ends within its time.

So a filter that hangs, or takes all memory, ends alone. Few run at once. Users' functions and Spark
are refused, since a viewer may write any text. A text that is tried may read no file of this host.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, Full, Queue
from typing import Any

from flumeng.agent.dryrun.users_code import calls_users_code
from flumeng.config import FlowSpec, parse_flow
from flumeng.control.commands.flows import keep_tap
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import overview
from flumeng.platform.errors import UnavailableError, UserError

TAPS, EXPLAINS = 8, 2
"""The most of each at once."""
RATE = 20
"""Events a second that a tap shows."""
START_SECONDS = 15.0
EXPLAIN_SECONDS = 20.0
ANSWER_SECONDS = 1.0
WAITING_LINES = 4
LINE_BYTES = 2 << 20
COMMAND = (sys.executable, "-m", "flumeng.agent.dryrun.trial_process")


def refuse(spec: FlowSpec, *, tried: bool = True) -> None:
    """Raises UserError for filters that run code, need Spark, or, if ``tried``, read files."""
    if calls_users_code(spec):
        raise UserError(
            "the filter python runs code of its author, and the console runs none: use "
            "`flumeng flow try` or `flumeng flow tap`, or tap a step before it"
        )
    for part in spec.all_filters:
        if part.name == "sql":
            raise UserError(
                "the filter sql needs Spark, which the console does not start: use `flumeng flow "
                "try` or `flumeng flow tap`, or tap a step before it"
            )
        if tried and (part.options.looks_up or any(part.options.needs())):
            raise UserError(
                f"the filter {part.name} reads files, and the console reads none for a text that "
                "is tried: use `flumeng flow try`"
            )


class ProcessTrials:
    """Implements ``flumeng.console.console.Trials``. ``command``: starts the process."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._taps = threading.BoundedSemaphore(TAPS)
        self._explains = threading.BoundedSemaphore(EXPLAINS)

    def tap(
        self,
        operator: Operator,
        flow: str,
        *,
        at: str | None,
        where: str | None,
        seconds: float,
        most: int,
    ) -> Iterator[Mapping[str, Any] | None]:
        """As ``Trials.tap``."""
        from flumeng.agent.dryrun import tap as taps  # noqa: PLC0415  loads pyarrow

        with _place(self._taps, f"{TAPS} taps of this console run now: try again in a minute"):
            text = overview.flow(operator.store, flow).text
            spec = taps.as_tapped(parse_flow(text), at, where)
            refuse(spec, tried=False)
            addresses = taps.servers(operator.store, flow)
            keep_tap(operator, flow, at=at, where=where)
            asked = {
                "work": "tap",
                "flow": flow,
                "text": text,
                "at": at,
                "where": where,
                "addresses": addresses,
                "rate": RATE,
                "seconds": seconds,
                "most": most,
            }
            yield from self._run(asked, START_SECONDS + seconds)

    def explain(
        self, text: str, events: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """As ``Trials.explain``."""
        busy = f"{EXPLAINS} trials of this console run now: try again in a few seconds"
        with _place(self._explains, busy):
            asked = {"work": "explain", "text": text, "events": events}
            return [
                answer
                for answer in self._run(asked, EXPLAIN_SECONDS, whole=True)
                if answer is not None
            ]

    def _run(
        self, asked: Mapping[str, Any], seconds: float, *, whole: bool = False
    ) -> Iterator[Mapping[str, Any] | None]:
        """Yield the answers of a process, and None once a second. ``whole``: raises
        UnavailableError if it is not done within ``seconds``; else it just ends."""
        deadline = time.monotonic() + seconds
        with subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            lines: Queue[bytes] = Queue(WAITING_LINES)
            over = threading.Event()
            reader = threading.Thread(
                target=_read, args=(process, json.dumps(asked).encode(), lines, over), daemon=True
            )
            reader.start()
            try:
                while (left := deadline - time.monotonic()) > 0:
                    try:
                        line = lines.get(timeout=min(left, ANSWER_SECONDS))
                    except Empty:
                        yield None
                        continue
                    if not line:
                        return
                    yield _answer(line)
                if whole:
                    raise UnavailableError(
                        f"the filters took longer than {seconds:.0f} s: the trial was ended"
                    )
            finally:
                over.set()
                process.kill()
                reader.join()


@contextmanager
def _place(places: threading.BoundedSemaphore, busy: str) -> Iterator[None]:
    if not places.acquire(blocking=False):
        raise UnavailableError(busy)
    try:
        yield
    finally:
        places.release()


def _read(
    process: subprocess.Popen[bytes], asked: bytes, lines: Queue[bytes], over: threading.Event
) -> None:
    """Give the process its input, and queue its lines, then an empty one."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):
        process.stdin.write(asked)
        process.stdin.close()
    more = True
    while more and not over.is_set():
        line = process.stdout.readline(LINE_BYTES)
        more = bool(line)
        while not over.is_set():
            with suppress(Full):
                lines.put(line, timeout=ANSWER_SECONDS)
                break


def _answer(line: bytes) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = json.loads(line)
    except ValueError as error:
        raise UnavailableError("an event is too large to be shown here") from error
    if "@error" in answer:
        raise UserError(answer["@error"])
    return answer
