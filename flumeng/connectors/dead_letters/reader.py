"""Executor-side reader of replayed dead letters. An offset is a row number among all rows of the
part's files, selected or not, so ranges are exact. A dead letter without a body is no event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.api.dead_letter_columns import ADDED
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.dead_letters import replay_lists
from flumeng.connectors.dead_letters.directory import DeadLetterDirectory, DeadLetterFile
from flumeng.connectors.dead_letters.files import open_dead_letters
from flumeng.connectors.dead_letters.options import DeadLettersSource, part_of
from flumeng.connectors.dead_letters.replay_lists import ListedFile
from flumeng.connectors.dead_letters.selection import Selection
from flumeng.connectors.kafka.messages import MESSAGE_SCHEMA, empty_maps
from flumeng.connectors.ranged.reading import Secrets, resolved
from flumeng.events import attributes
from flumeng.events.attributes import PARSE_ERROR
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError


@dataclass(frozen=True)
class DeadLettersReader:
    location: str
    of_flow: str
    replay: str
    messages: bool
    resolved: Secrets = ()
    modules: frozenset[str] = frozenset()

    @classmethod
    def of(cls, source: DeadLettersSource) -> DeadLettersReader:
        secrets = resolved(source.credentials)
        return cls(source.location, source.of, source.replay, source.messages, secrets)

    @property
    def schema(self) -> pa.Schema:
        return MESSAGE_SCHEMA if self.messages else READ_SCHEMA

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yield the selected dead letters as events. Raises UnreadableError with the row's offset,
        which callers cannot derive from ``seq``: it is the original event's."""
        del address
        offset = piece.start
        try:
            directory, selection, files = _part(self, part_of(piece.partition))
            first = 0
            for listed in files:
                last = first + listed.rows
                if last > piece.start and first < piece.end:
                    for row, letters in self._letters(directory, listed, piece, first):
                        offset = row
                        chosen = listed.mask(selection, letters.select(ADDED.names))
                        mask = pc.and_(chosen, letters["body"].is_valid())
                        if mask.true_count:
                            yield self._events(letters.filter(mask), row, mask, piece.partition)
                        offset = row + letters.num_rows
                first = last
        except FlumengError as error:
            damaged = not isinstance(error, UnavailableError)
            raise UnreadableError(piece.partition, offset, str(error), damaged=damaged) from error

    def _letters(
        self, directory: DeadLetterDirectory, listed: ListedFile, piece: Range, first: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the file's rows that lie in ``piece``, each batch after its offset. ``first``: the
        offset of the file. Raises CorruptError if the file's size has changed."""
        path = directory.path_of(listed.name)
        with directory.errors(path):
            (info,) = directory.store.files.get_file_info([path])
        if info.size not in (None, listed.bytes):
            raise CorruptError(f"rows of {path} were purged after the file was listed for replay")
        start = max(piece.start - first, 0)
        end = min(piece.end - first, listed.rows)
        file = DeadLetterFile(path, listed.name, listed.bytes, 0.0)
        row = first + start
        schema = pa.schema([*(f for f in self.schema if f.name != "replayed"), *ADDED])
        for batch in open_dead_letters(directory, file).read(schema, start, end):
            yield row, batch
            row += batch.num_rows

    def _events(
        self, letters: pa.RecordBatch, row: int, mask: pa.BooleanArray, partition: str
    ) -> pa.RecordBatch:
        """Return the original events; a missing identity becomes the row's partition and number."""
        rows = pc.add(pc.indices_nonzero(mask).cast(pa.int64()), row)
        lost = pc.or_(letters["journal"].is_null(), letters["seq"].is_null())
        attrs = _filled(letters["attrs"])
        values: Mapping[str, pa.Array] = {
            "body": letters["body"],
            "ts": pc.coalesce(letters["ts"], letters["dead_time"]),
            "host": pc.fill_null(letters["host"], ""),
            "attrs": attributes.without(attrs, [PARSE_ERROR]),
            "journal": pc.if_else(lost, partition, letters["journal"]),
            "seq": pc.if_else(lost, rows, letters["seq"]),
            "replayed": pa.repeat(pa.scalar(value=True), letters.num_rows),
        }
        columns = [values[name] if name in values else letters[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _filled(attrs: pa.MapArray) -> pa.MapArray:
    if not attrs.null_count:
        return attrs
    empty = empty_maps(attrs.type, 1)
    indices = pc.if_else(attrs.is_null(), len(attrs), pa.array(range(len(attrs)), pa.int64()))
    return pa.concat_arrays([attrs, empty]).take(indices)


@lru_cache(maxsize=64)
def _part(
    reader: DeadLettersReader, number: int
) -> tuple[DeadLetterDirectory, Selection, tuple[ListedFile, ...]]:
    """Return a part of the replay's list, and its directory. Marks the list as read."""
    directory = DeadLetterDirectory(reader.location, dict(reader.resolved).__getitem__)
    selection, files = replay_lists.read_part(directory, reader.of_flow, reader.replay, number)
    replay_lists.mark(directory, reader.of_flow, reader.replay, replay_lists.READ)
    return directory, selection, files
