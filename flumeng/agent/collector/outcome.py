"""The outcome of a batch: what each sink has written, or the error and the sink that raised it.
Errors of three languages become ours, in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import PySparkException

from flumeng.config import FlowSpec
from flumeng.connectors.api.dead_letters import RefusedError
from flumeng.connectors.api.ranged import UnreadableError
from flumeng.connectors.api.sink import BatchTooWideError, Written
from flumeng.events.lazy_batch import LargeRowsError
from flumeng.platform.errors import FlumengError, UnavailableError, UserError

Outcome = list[Written] | Exception
"""What each sink wrote, or why the batch failed: BatchTooWideError, UnavailableError,
UnreadableError, BatchFailedError, HungError, BrokenTogetherError or an unforeseen error."""
_RAISED = re.compile(r"^(?:: )?([\w.]+(?:Error|Exception))(?:: (.*))?$", re.MULTILINE)


class BatchFailedError(FlumengError):
    """A filter, a sink or a read of the batch failed; the message is the cause in one line."""


class SinkUnavailableError(UnavailableError):
    """The sink at ``place`` in its flow takes no batch now."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(text)
        self.place = place


@contextmanager
def written_to(place: str) -> Iterator[None]:
    """Attributes UnavailableErrors inside to the sink at ``place``."""
    try:
        yield
    except UnavailableError as error:
        raise SinkUnavailableError(place, str(error)) from error


def places_of(spec: FlowSpec) -> list[str]:
    """The places of its sinks by number, the one for dead letters last."""
    return [*(leaf.place for leaf in spec.leaves), "dead_letters"]


class HungError(FlumengError):
    """A batch did not end within its limit."""

    @classmethod
    def after(cls, seconds: float, sinks: Sequence[str], step: str = "") -> HungError:
        """``sinks``: the places of the batch's sinks; ``step``: what it was doing, if known."""
        doing = f" while {step}" if step else ""
        return cls(f"a batch for {', '.join(sinks)} has hung{doing}: no end after {seconds:g} s")


class BrokenTogetherError(FlumengError):
    """The job of this batch and others broke down; which of them broke it is unknown."""


def one_line(error: Exception) -> FlumengError:
    """The cause of a failed Spark job, out of traces of up to three languages. A note at the error
    names the filter or sink."""
    text = error.getMessage() if isinstance(error, PySparkException) else ""
    text = text or str(error)  # Spark 4.0 has no message for what Python has raised
    raised = [match for match in _RAISED.finditer(text) if match[2]]
    if not raised:
        first = text.strip().splitlines() or [type(error).__name__]
        found: FlumengError = BatchFailedError(first[0])
    else:
        found = of_kind(raised[-1][1].rpartition(".")[2], raised[-1][2])
    if isinstance(found, BatchFailedError) and (notes := getattr(error, "__notes__", [])):
        return BatchFailedError(f"{notes[0]}: {found}")
    return found


def of_kind(kind: str, message: str) -> FlumengError:
    """The error of that name that an executor has raised."""
    if kind in _names_of(UnavailableError):
        return UnavailableError(message)
    if kind == UnreadableError.__name__:
        return UnreadableError.parse(message)
    for known in (BatchTooWideError, LargeRowsError, RefusedError, UserError):
        if kind == known.__name__:
            return known(message)
    return BatchFailedError(f"{kind}: {message}")


def _names_of(kind: type[FlumengError]) -> Iterator[str]:
    yield kind.__name__
    for special in kind.__subclasses__():
        yield from _names_of(special)


def of_sink(error: FlumengError, places: Sequence[str]) -> FlumengError:
    """Name the sink that is unavailable; failed reads are UnreadableErrors. With several ``places``
    the error stays as it is."""
    if isinstance(error, UnavailableError) and len(places) == 1:
        return SinkUnavailableError(places[0], str(error))
    return error
