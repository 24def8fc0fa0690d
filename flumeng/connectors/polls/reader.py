"""Reads ranges of answers in executors: rows of the files that have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from flumeng.config.component import Component
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.polls import answers
from flumeng.connectors.polls.answer_files import AnswerFiles
from flumeng.connectors.polls.answers import KeptAnswer
from flumeng.control.snapshot import queues
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError, UnavailableError
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.scrubbing import Secret


@dataclass(frozen=True)
class PollsReader:
    """See ``Reader``; an address is what ``answers.encode`` gives. ``location``: where the answers
    of ``flow`` lie, and ``resolved`` what the references in it stand for."""

    flow: str
    source: str
    location: str
    resolved: tuple[tuple[str, Secret], ...] = ()
    schema: pa.Schema = READ_SCHEMA
    modules: frozenset[str] = frozenset({"pyarrow.parquet"})

    @classmethod
    def of(cls, flow: str, part: Component[Any]) -> PollsReader:
        """Raises UserError."""
        where = part.options.answers
        given = where.credentials.given if where.credentials else {}
        resolved = tuple(
            (reference, secrets.resolve(reference))
            for reference in given.values()
            if SECRET.fullmatch(reference)
        )
        return cls(flow, part.name, where.location, resolved)

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Raises UnreadableError itself: an answer has fewer rows than offsets."""
        lane = queues.lane_of(piece.partition)
        assert lane is not None, piece.partition
        offset = piece.start
        try:
            resolve = dict(self.resolved).__getitem__
            files = AnswerFiles(self.location, self.flow, lane[1], resolve)
            for answer in answers.decode(address):
                first = max(0, piece.start - answer.start)
                last = min(answer.rows, piece.end - answer.start)
                if first < last:
                    offset = answer.start + first
                    for bodies in files.read(answer.file, first, last):
                        yield self._events(piece, answer, offset, bodies)
                        offset += len(bodies)
        except FlumengError as error:
            damaged = not isinstance(error, UnavailableError)
            raise UnreadableError(piece.partition, offset, str(error), damaged=damaged) from error

    def _events(
        self, piece: Range, answer: KeptAnswer, offset: int, bodies: pa.BinaryArray
    ) -> pa.RecordBatch:
        count = len(bodies)
        due = datetime.fromtimestamp(answer.due_us / 1e6, UTC)
        attrs = pa.scalar(
            {"source": self.source, "due": due.isoformat()}, READ_SCHEMA.field("attrs").type
        )
        columns = {
            "body": bodies,
            "ts": pa.array(np.full(count, answer.due_us)).view(READ_SCHEMA.field("ts").type),
            "host": pa.repeat(pa.scalar("", pa.string()), count),
            "attrs": pa.repeat(attrs, count),
            "journal": pa.repeat(pa.scalar(piece.partition, pa.string()), count),
            "seq": pa.array(np.arange(offset, offset + count)),
            "replayed": pa.repeat(pa.scalar(piece.replayed, pa.bool_()), count),
        }
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in READ_SCHEMA.names], schema=READ_SCHEMA
        )
