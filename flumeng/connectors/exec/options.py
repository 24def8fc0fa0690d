"""The options of the source ``exec``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.connectors.api.line_options import max_line_bytes
from flumeng.connectors.polls.options import Answers, KeepsAnswers, Schedule
from flumeng.platform.options.option import Need, option


@dataclass(frozen=True)
class Exec(KeepsAnswers):
    """Runs a command on the node and takes the lines that it prints.

    Only where the node's own policy file allows the command. It runs without a shell, and ends with
    the source. Attributes: `source`, `command`.

    With `once_per: cluster` it runs at the times of a schedule, each time on one of the nodes that
    collect the flow. `FLUMENG_DUE` in its environment is the due time. `FLUMENG_SINCE`, absent at
    first, is the due time of the run whose lines were taken last. An event's time is the due time.
    """

    implementation: ClassVar[str] = "flumeng.connectors.exec.source:ExecSource"
    poll: ClassVar[str] = "flumeng.connectors.exec.poll:ExecPoll"

    command: tuple[str, ...] = option(
        doc="The program, as an absolute path, and its arguments.",
        minimum=1,
        example='["/usr/bin/vmstat", "-n", "10"]',
    )
    mode: Literal["streaming", "periodic", "once"] = option(
        doc="`streaming`: run it for ever, and restart it when it ends. `periodic`: run it every "
        "`every_seconds`. `once`: run it until it has succeeded once.",
        default="streaming",
    )
    every_seconds: float = option(
        doc="With `periodic`: the time from start to start; a longer run delays the next.",
        between=(0.1, 604_800),
        default=60.0,
    )
    max_line_bytes: int = max_line_bytes()
    once_per: Literal["node", "cluster"] = option(
        doc="`node`: each node of `place.ingest` runs it, by `mode`. `cluster`: one node runs it "
        "at each time of `schedule`; `mode` has no effect.",
        default="node",
    )
    schedule: Schedule | None = option(doc="With `cluster`: when to run it.", default=None)
    answers: Answers | None = option(
        doc="With `cluster`: where its output is stored until all sinks have it.", default=None
    )
    timeout_seconds: float = option(
        doc="With `cluster`: a run that takes longer is ended, and its output is discarded.",
        between=(0.1, 600),
        default=60.0,
    )

    @property
    def placing(self) -> Literal["pinned", "partitioned"]:
        return "partitioned" if self._polled else "pinned"

    @property
    def keeps_place(self) -> bool:
        return self.mode == "once" and not self._polled

    @property
    def _polled(self) -> bool:
        return self.once_per == "cluster"

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.command[0].startswith("/"):
            yield "command", f"expected an absolute path first; found {self.command[0]!r}"
        polled = {"schedule": self.schedule is not None, "answers": self.answers is not None}
        for name, given in polled.items():
            if given and not self._polled:
                yield name, "needs `once_per: cluster`"
            elif self._polled and not given:
                yield name, "expected with `once_per: cluster`"
        if self._polled and (self.mode, self.every_seconds) != ("streaming", 60.0):
            yield (
                "mode",
                "has no effect with `once_per: cluster`: leave out mode and every_seconds",
            )

    def needs(self) -> Iterator[Need]:
        yield "command", self.command
        if self.answers is not None:
            yield "output", self.answers.path

    def arrival(self) -> str:
        if self._polled:
            return "the output of a successful run is taken once"
        return "output that is not journaled when the worker fails is lost"
