"""What tasks, jobs and Spark hand to each other: a batch that is to be written, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flumeng.collector.ranges import Range
from flumeng.errors import FlumengError
from flumeng.sinks import Written
from flumeng.spec import FlowSpec

Outcome = list[Written] | Exception
"""What each sink wrote, or why the batch failed: BatchTooWideError, UnavailableError,
UnreadableError, BatchFailedError, HungError, BrokenTogetherError and whatever was not foreseen."""


class BatchFailedError(FlumengError):
    """A filter, a sink or a read of the batch failed; the message is the cause in one line."""


class HungError(FlumengError):
    """A batch did not end within its limit."""


class BrokenTogetherError(FlumengError):
    """The job that wrote this batch among others broke down; which of them broke it is unknown."""


class Pipeline(Protocol):
    """A flow's filters and sinks. ``roots``: where its sinks stage. ``shareable``: all of its
    stages are Arrow, so that a batch may be written in one job with batches of other flows."""

    @property
    def spec(self) -> FlowSpec: ...

    @property
    def roots(self) -> tuple[str, ...]: ...

    @property
    def shareable(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Work:
    """A batch that is to be written now; ``staging`` gives each root's directory.

    ``done`` is told the outcome once, from any thread; it only takes it down.
    """

    pipeline: Pipeline
    ranges: Sequence[Range]
    addresses: Mapping[str, str]
    staging: Mapping[str, str]
    limit_seconds: float
    done: Callable[[Outcome], None]
