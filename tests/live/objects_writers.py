"""Objects with every kind of trouble, and the expected fate of their lines.

Lines are ``OBJECT VERSION LINE``, in numbers; an object that is rewritten has the lines of
version 2. Objects appear under names before and behind those that are there.
"""

from __future__ import annotations

import gzip
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import duckdb
import pyarrow as pa

from tests.live.objects_stores import Place

WRITERS = 24
DIRECTORIES = 20
LATE_SECONDS = 4.0
"""Objects are rewritten or deleted at once or up to this many seconds later."""
DAMAGED_LINES = 5_000
HUGE_LINE_BYTES = 100

Fate = Literal["once", "whole", "part"]
"""The fate of the lines of one version of an object: all are in the lake once; all or none; or the
first ones up to any line."""


@dataclass
class Expected:
    """``damaged``: objects that cannot be read to their end; ``deleted``: objects that may be
    deleted before they are read; ``rewritten``: name -> final content."""

    rows: list[tuple[int, int, int, Fate]] = field(default_factory=list)
    """Object, version, number of lines and fate."""
    good: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    rewritten: dict[str, bytes] = field(default_factory=dict)

    def add(self, number: int, count: int, fate: Fate, version: int = 1) -> None:
        self.rows.append((number, version, count, fate))

    def table(self) -> pa.Table:
        names = ("object", "version", "lines", "fate")
        columns = zip(*self.rows, strict=True)
        return pa.table(dict(zip(names, map(list, columns), strict=True)))


class Trouble(threading.Thread):
    """Writes ``objects`` objects evenly within ``seconds``."""

    def __init__(
        self, place: Place, seed: int, *, objects: int, seconds: float, huge: int, huge_bytes: int
    ) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._seed = seed
        self._objects, self._seconds = objects, seconds
        self._huge_lines, self._huge_every = huge_bytes // HUGE_LINE_BYTES, objects // huge
        self._rare = min(objects // 3, 1_000)
        """One of so many objects has a certain fault."""
        self._done: list[Future[None]] = []
        self.expected = Expected()

    def run(self) -> None:
        due = time.monotonic()
        with ThreadPoolExecutor(WRITERS) as pool:
            for number in range(self._objects):
                self._done.append(pool.submit(self._write, number))
                due += self._seconds / self._objects
                time.sleep(max(0.0, due - time.monotonic()))

    def finish(self, seconds: float) -> None:
        """Wait for the writers; re-raises their errors."""
        self.join(timeout=seconds)
        assert not self.is_alive(), "the writers did not end"
        for one in self._done:
            one.result()

    def _write(self, number: int) -> None:
        """Write one object; its own random generator makes it the same in each run of a seed."""
        chance = random.Random(self._seed * 1_000_003 + number)
        expected, kind = self.expected, number % self._rare
        name = f"{chance.randrange(DIRECTORIES)}/{chance.getrandbits(24):06x}-{number}"
        if number % self._huge_every == self._huge_every // 2:
            self._write_huge(number, name, chance)
        elif kind in (11, 12):
            expected.damaged.add(name)
            expected.add(number, DAMAGED_LINES, "part")
            whole = gzip.compress(_lines(number, 1, DAMAGED_LINES), 1)
            torn = whole[: len(whole) // 2]
            self._place.put(name, torn if kind == 11 else whole[:-8] + b"no check")
        elif kind in (21, 22):
            expected.deleted.add(name)
            count = chance.randrange(1, 60)
            expected.add(number, count, "whole")
            self._place.put(name, _lines(number, 1, count))
            time.sleep(chance.uniform(0, LATE_SECONDS) if kind == 22 else 0)
            self._place.remove(name)
        elif kind in (31, 32, 33, 34):
            count = chance.randrange(1, 60)
            more = count + 1 if kind == 34 else count
            pause = (chance.uniform(0, LATE_SECONDS), 0.9, 0.0, chance.uniform(0, LATE_SECONDS))
            expected.add(number, count, "whole")
            expected.add(number, more, "once", 2)
            self._place.put(name, _lines(number, 1, count))
            time.sleep(pause[kind - 31])
            self._rewrite(name, _lines(number, 2, more))
        else:
            expected.good.add(name)
            count = 0 if number % 10 == 3 else chance.randrange(1, 60)
            data = _lines(number, 1, count)
            expected.add(number, count, "once")
            self._place.put(name, _packed(data, number))

    def _write_huge(self, number: int, name: str, chance: random.Random) -> None:
        """Write a huge object; one of three is compressed, and one is rewritten with the same
        size."""
        kind, count = number // self._huge_every % 3, self._huge_lines
        data = _lines(number, 1, count, HUGE_LINE_BYTES)
        if kind == 2:
            self.expected.add(number, count, "part")
            self.expected.add(number, count, "once", 2)
            self._place.put(name, data)
            time.sleep(chance.uniform(0, LATE_SECONDS))
            self._rewrite(name, _lines(number, 2, count, HUGE_LINE_BYTES))
            return
        self.expected.good.add(name)
        self.expected.add(number, count, "once")
        self._place.put(name, gzip.compress(data, 1) if kind == 1 else data)

    def _rewrite(self, name: str, data: bytes) -> None:
        self.expected.rewritten[name] = data
        self._place.put(name, data)


def _lines(number: int, version: int, count: int, width: int = 0) -> bytes:
    texts = (f"{number} {version} {line} ".ljust(width - 1, "x") for line in range(count))
    return "".join(f"{text}\n" for text in texts).encode()


def _packed(data: bytes, number: int) -> bytes:
    if number % 10 in (1, 4):
        return gzip.compress(data)
    return pa.compress(data, "zstd", asbytes=True) if number % 10 == 7 else data


WRONG = """
WITH events AS (
    SELECT string_split(decode(body), ' ') AS words FROM read_parquet('{lake}/*.parquet')
), found AS (
    SELECT words[1]::BIGINT AS object, words[2]::BIGINT AS version, count(*) AS events,
        count(DISTINCT words[3]::BIGINT) AS lines, max(words[3]::BIGINT) + 1 AS until
    FROM events GROUP BY ALL
)
SELECT object, version, fate, e.lines AS wanted, coalesce(f.lines, 0) AS there, events, until
FROM expected e FULL OUTER JOIN found f USING (object, version)
WHERE fate IS NULL OR events <> f.lines OR until <> f.lines OR until > e.lines
    OR fate = 'once' AND coalesce(f.lines, 0) <> e.lines
    OR fate = 'whole' AND coalesce(f.lines, 0) NOT IN (0, e.lines)
ORDER BY object, version
"""


def wrong_lines(lake: Path, expected: pa.Table) -> list[tuple[object, ...]]:
    """Versions of objects whose lines in the lake contradict their ``Fate``.

    Counted by DuckDB, since there are millions.
    """
    with duckdb.connect() as database:
        database.register("expected", expected)
        return database.sql(WRONG.format(lake=lake)).fetchall()
