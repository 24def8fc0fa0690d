"""The first stage of every batch: an executor reads its split from the journals' servers.

Where a journal is served is part of the split, so an executor needs neither ZooKeeper nor
configuration. A range comes whole and checked, or the Spark task fails soon, and says which journal
it was and where.
"""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from flumeng.collector.ranges import Split
from flumeng.errors import CorruptError, FlumengError, UnavailableError, UserError
from flumeng.filters import identity
from flumeng.journal.client import JournalClient
from flumeng.journal.schema import READ_SCHEMA
from flumeng.runtime.idle_clients import IdleClients

READ_SECONDS = 5.0
"""A server that sends no frame for so long is left out. A link has to carry a frame in that time:
4 MiB at most, but for batches that were larger than that already."""
_DAMAGED, _UNANSWERED = "cannot be read", "does not come"
_UNREADABLE = re.compile(rf"journal (\S+) ({_DAMAGED}|{_UNANSWERED}) at seq (\d+): (.*)")


class UnreadableError(FlumengError):
    """What a journal has from ``seq`` on cannot be read now; ``why`` is for people.

    ``damaged``: what is there makes no sense; else the server does not send it, or not in time.
    Whoever made the batch leaves the journal out for a while, and goes on with the others.
    """

    def __init__(self, journal: str, seq: int, why: str, *, damaged: bool = True) -> None:
        super().__init__(journal, seq, why)
        self.journal, self.seq, self.why, self.damaged = journal, seq, why, damaged

    def __str__(self) -> str:
        kind = _DAMAGED if self.damaged else _UNANSWERED
        return f"journal {self.journal} {kind} at seq {self.seq}: {self.why}"

    @classmethod
    def parse(cls, text: str) -> UnreadableError:
        """The reverse: all that comes of an executor's error is its text."""
        found = _UNREADABLE.fullmatch(text)
        assert found, text
        return cls(found[1], int(found[3]), found[4], damaged=found[2] == _DAMAGED)


_idle: IdleClients[str, JournalClient] = IdleClients()


@contextmanager
def _client(address: str) -> Iterator[JournalClient]:
    """A client of that server. It is kept for the next read when this one raises nothing."""
    client = _idle.take(address) or JournalClient(address, READ_SECONDS)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _idle.keep(address, client)


@functools.cache
def _freeze_modules() -> None:
    """Spark's Python workers collect garbage after each task, which takes 50 ms with the modules
    that are loaded. They are left out of it from the first batch on."""
    gc.freeze()


@dataclass(frozen=True)
class Fetch:
    """``addresses``: journal -> host:port, for every journal in ``splits``. ``identified``: with
    the columns of ``filters.identity``."""

    splits: tuple[Split, ...]
    addresses: Mapping[str, str]
    identified: bool = False

    @property
    def schema(self) -> pa.Schema:
        return identity.with_identity(READ_SCHEMA) if self.identified else READ_SCHEMA

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes batches of split numbers, gives ``schema``."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                events = self._read(self.splits[number])
                if self.identified:
                    events = (identity.identify(part, number) for part in events)
                yield from events
        _freeze_modules()

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        for piece in split:
            seq = piece.start
            with _client(self.addresses[piece.journal]) as client:
                try:
                    for batch in client.read(
                        piece.journal, seq, piece.end, replayed=piece.replayed
                    ):
                        yield batch
                        seq = batch.column("seq")[-1].as_py() + 1
                except (CorruptError, UserError, UnavailableError) as error:
                    damaged = not isinstance(error, UnavailableError)
                    raise UnreadableError(
                        piece.journal, seq, str(error), damaged=damaged
                    ) from error
