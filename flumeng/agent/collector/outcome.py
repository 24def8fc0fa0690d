"""The outcome of a batch: its sinks' results, or an error with the cause in one line."""

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
"""Each sink's result, or the error: UserError, BatchTooWideError, UnavailableError, RefusedError,
UnreadableError, BatchFailedError, HungError, BrokenTogetherError or an unforeseen one."""
_RAISED = re.compile(r"^(?:: )?([\w.]+(?:Error|Exception))(?:: (.*))?$", re.MULTILINE)

_AWAY = ("StatusCode.UNAVAILABLE", "[INVALID_HANDLE.SESSION")
"""Signs of a Spark Connect server that has ended, and of one that was started again since."""


class BatchFailedError(FlumengError):
    """A filter, a sink or a read of the batch failed; the message is the cause in one line."""


class SinkUnavailableError(UnavailableError):
    def __init__(self, sink: str, text: str) -> None:
        super().__init__(text)
        self.place = sink


@contextmanager
def written_to(sink: str) -> Iterator[None]:
    """Attribute UnavailableErrors raised in the context to ``sink``."""
    try:
        yield
    except UnavailableError as error:
        raise SinkUnavailableError(sink, str(error)) from error


def places_of(spec: FlowSpec) -> list[str]:
    """Return the places of a flow's sinks by number; last, with or without such a sink, that of
    dead letters."""
    return [*(leaf.place for leaf in spec.leaves), "dead_letters"]


class HungError(FlumengError):
    """A batch exceeded its time limit."""

    @classmethod
    def after(cls, seconds: float, sinks: Sequence[str], step: str = "") -> HungError:
        """Return the error for a batch of ``sinks`` (places). ``step``: its last known step."""
        doing = f" while {step}" if step else ""
        return cls(f"a batch for {', '.join(sinks)} has hung{doing}: no end after {seconds:g} s")


class BrokenTogetherError(FlumengError):
    """A job of several batches failed; the batch at fault is unknown."""


class CutShortError(BrokenTogetherError):
    """A batch was interrupted early, because others of its Spark task had waited for too long."""


def one_line(error: Exception) -> FlumengError:
    """Return the cause of a failed Spark job; a note on ``error`` names the filter or sink."""
    text = error.getMessage() if isinstance(error, PySparkException) else ""
    text = text or str(error)  # Spark 4.0 has no message for errors of Python
    raised = [match for match in _RAISED.finditer(text) if match[2]]
    if not raised and any(sign in text for sign in _AWAY):
        cause: FlumengError = UnavailableError("the Spark Connect server does not answer")
    elif not raised:
        first = text.strip().splitlines() or [type(error).__name__]
        cause = BatchFailedError(first[0])
    else:
        cause = of_kind(raised[-1][1].rpartition(".")[2], raised[-1][2])
    if isinstance(cause, BatchFailedError) and (notes := getattr(error, "__notes__", [])):
        return BatchFailedError(f"{notes[0]}: {cause}")
    return cause


def of_kind(kind: str, message: str) -> FlumengError:
    if kind in _names_of(UnavailableError):
        return UnavailableError(message)
    if kind == UnreadableError.__name__:
        return UnreadableError.parse(message)
    for error_type in (BatchTooWideError, LargeRowsError, RefusedError, UserError):
        if kind == error_type.__name__:
            return error_type(message)
    return BatchFailedError(f"{kind}: {message}")


def _names_of(kind: type[FlumengError]) -> Iterator[str]:
    yield kind.__name__
    for special in kind.__subclasses__():
        yield from _names_of(special)


def of_sink(error: FlumengError, places: Sequence[str]) -> FlumengError:
    """Attribute an UnavailableError to the sink at ``places``, if there is only one."""
    if isinstance(error, UnavailableError) and len(places) == 1:
        return SinkUnavailableError(places[0], str(error))
    return error
