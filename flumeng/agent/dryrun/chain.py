"""The filters of a flow, one after the other, over batches in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from flumeng.config.component import Component, FilterOptions
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch, Session
from flumeng.filters.contract import Filter
from flumeng.filters.making import made, marking
from flumeng.platform.errors import FlumengError


@dataclass(frozen=True)
class Given:
    """A first stage: these events, whatever it is asked for."""

    batches: tuple[pa.RecordBatch, ...]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deque(numbers, maxlen=0)  # else Spark's Python worker would not serve another task
        yield from self.batches


class FilterChain:
    """``identified``: events are given the columns of ``events.identity``, which filters keep.
    ``enter`` says which events, of those that it is given, are for these filters. ``marks``: what
    the last filter could not process stays, and is marked as ``filters.on_error`` does it."""

    def __init__(
        self,
        parts: Sequence[Component[FilterOptions]],
        session: Session,
        schema: pa.Schema,
        *,
        identified: bool = False,
        enter: Callable[[LazyBatch], LazyBatch] | None = None,
        marks: bool = False,
    ) -> None:
        """Raises UserError when filters do not fit the events, or one another."""
        self._session = session
        self._enter = enter
        self._filters: list[Filter] = [made(part) for part in parts]
        if marks:
            self._filters[-1] = marking(parts[-1])
        self._identified = identified
        self._before = identity.with_identity(schema) if identified else schema
        tried = self._applied(())
        self.schema = tried.schema
        self.in_arrow = tried.all_arrow is not None

    def run(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """What comes out of ``batches``, which are one batch of the flow's, in ``schema``.

        Raises UserError, UnavailableError and whatever a filter raises in a collector.
        """
        for step in self._filters:
            for table in step.tables:
                table.refresh()
        given = [identity.identify(batch, 0) for batch in batches] if self._identified else batches
        batch = self._applied(given)
        stage = batch.all_arrow
        if stage is not None:
            return [found for found in stage(iter(())) if found.num_rows]
        try:
            found = batch.rows().toArrow().cast(batch.schema)
        except FlumengError:
            raise
        except Exception as error:
            raise _one_line(error) from error
        return [part for part in found.to_batches() if part.num_rows]

    def _applied(self, batches: Sequence[pa.RecordBatch]) -> LazyBatch:
        first = Given(tuple(batches))
        batch = LazyBatch.of_splits(self._session, 1, first, self._before)
        batch = replace(batch, large_rows=True)
        try:
            if self._enter is not None:
                batch = self._enter(batch)
            for step in self._filters:
                batch = step.apply(batch)
        except FlumengError:
            raise
        except Exception as error:
            raise _one_line(error) from error
        return batch


def _one_line(error: Exception) -> FlumengError:
    from flumeng.agent.collector.pipeline import one_line  # noqa: PLC0415  loads all that a collector has

    return one_line(error)
