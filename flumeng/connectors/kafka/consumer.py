"""Adapter to Kafka's consumer: reads an exact range of offsets of one partition.

Offsets have gaps: aborted transactions, markers, compaction. So a range is complete at a message at
or above its end, or at the partition's end. The consumer joins no group, commits nothing, and its
prefetch is bounded in bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flumeng.connectors.kafka.access import Access, consumer_settings
from flumeng.connectors.kafka.columns import Columns, columns, pieces
from flumeng.connectors.kafka.compiled_loops import Numbers
from flumeng.connectors.kafka.errors import GROUP, PASSING, KafkaError, KafkaException, meaning
from flumeng.connectors.kafka.librdkafka import Client, MessageBatch
from flumeng.platform.errors import CorruptError, UnavailableError, UserError

MESSAGES_AT_ONCE = 20_000
WAIT_SECONDS = 0.05
"""Longest wait for a full batch of messages."""
PROGRESS_SECONDS = 8.0
"""A read fails when the broker sends nothing for this long."""


class RangeConsumer:
    """Reader for one thread at a time; unusable after an error."""

    def __init__(self, access: Access, *, committed: bool) -> None:
        self._access = access
        self._trouble: Any = None
        try:
            self._client = Client(consumer_settings(access, committed=committed), self._note)
        except KafkaException as error:
            raise UserError(f"{access}: {error.args[0].str()}") from error

    def read(
        self, topic: str, number: int, start: int, end: int, on_taken: Callable[[], None]
    ) -> Iterator[list[Columns]]:
        """Yield all messages with offsets in [start, end), in order. The last item, perhaps empty,
        comes when no more can follow. ``on_taken`` is called when messages have arrived, before
        they are converted.

        Raises CorruptError when ``start`` no longer exists or data is damaged, UserError, and
        UnavailableError when nothing arrives for PROGRESS_SECONDS.
        """
        label, at, moved_at = f"{topic} [{number}]", start, time.monotonic()
        self._client.assign(topic, number, start)
        while at < end:
            with self._client.take(min(end - at, MESSAGES_AT_ONCE), WAIT_SECONDS) as batch:
                chosen, at_end = self._sorted_out(batch, end, label)
                if len(chosen) or at_end:
                    on_taken()
                    at = end if at_end else int(batch.records["offset"][chosen[-1]]) + 1
                    moved_at = time.monotonic()
                    converted = [columns(batch, piece) for piece in pieces(batch, chosen)]
                elif time.monotonic() - moved_at > PROGRESS_SECONDS:
                    raise self._no_progress(label, at)
                else:
                    continue
            yield converted
        self._client.unassign()

    def close(self) -> None:
        self._client.close()

    def _sorted_out(self, batch: MessageBatch, end: int, label: str) -> tuple[Numbers, bool]:
        """Return the indices of the messages below ``end``, and whether the range is complete."""
        codes, offsets = batch.records["code"], batch.records["offset"]
        beyond = np.flatnonzero((codes == 0) & (offsets >= end))
        stop, at_end = (int(beyond[0]), True) if len(beyond) else (len(codes), False)
        for number in np.flatnonzero(codes[:stop]):
            error = batch.error(int(number))
            if error.code() == KafkaError._PARTITION_EOF:
                at_end |= bool(offsets[number] >= end)
            elif error.code() in PASSING:
                self._note(error)
            elif error.code() not in GROUP:
                raise self._meaning(error, label)
        return np.flatnonzero(codes[:stop] == 0), at_end

    def _meaning(self, error: Any, label: str) -> Exception:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return CorruptError(f"{self._access}: messages of {label} are gone: {error.str()}")
        return meaning(error, self._access)

    def _no_progress(self, label: str, at: int) -> Exception:
        trouble = self._trouble
        if trouble is not None and trouble.code() not in PASSING:
            return meaning(trouble, self._access)
        cause = "" if trouble is None else f": {trouble.str()}"
        return UnavailableError(
            f"{self._access}: no messages of {label} from offset {at} on within "
            f"{PROGRESS_SECONDS:g} s{cause}"
        )

    def _note(self, error: Any) -> None:
        self._trouble = error
