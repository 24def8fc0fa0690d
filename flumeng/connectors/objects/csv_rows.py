"""CSV rows as JSON with verbatim text values. A row of the wrong width is kept as its raw text."""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pc

from flumeng.connectors.objects.content import BlockFile, Content, text_from, without_mark
from flumeng.connectors.objects.formats import Rows, chosen, numbered, texts_of
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.platform.errors import CorruptError

BLOCK_BYTES = 4 << 20
NAMES_BYTES = 1 << 20
MOST_UNFIT = 100_000
"""More consecutive rows of the wrong width make the item damaged."""


def parts(content: Content, source: ObjectsSource, start: int, end: int) -> Iterator[Rows]:
    """Yield rows [start, end). Before an error of ``content`` the last row is omitted: it may be
    incomplete."""
    _, blocks = text_from(content, source.encoding, 0)
    with content.explained():
        yield from numbered(_bodies(without_mark(blocks), source), start, end)


def _bodies(blocks: Iterator[bytes], source: ObjectsSource) -> Iterator[pa.BinaryArray | str]:
    first = BlockFile(blocks)
    beginning = first.read(NAMES_BYTES)
    names, header = _names(beginning, source)
    beginning = beginning[header:]
    if len(beginning) < NAMES_BYTES and not beginning.strip(b"\r\n"):
        more = first.read(NAMES_BYTES)
        beginning += more
        if not beginning.strip(b"\r\n"):
            first.check()
            return
    yield from _Reading(names, _ended(beginning, first), source).bodies()


def _names(beginning: bytes, source: ObjectsSource) -> tuple[list[str], int]:
    given = list(source.names or ())
    if not source.named_by_row:
        return given, 0
    size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        text = beginning.decode("utf-8", "surrogateescape")
        for line in io.StringIO(text, newline=""):
            size += len(line.encode("utf-8", "surrogateescape"))
            yield line

    rows = csv.reader(
        lines(),
        delimiter=source.separator,
        quotechar=source.quote or None,
        escapechar=source.escape or None,
        quoting=csv.QUOTE_MINIMAL if source.quote else csv.QUOTE_NONE,
    )
    try:
        header = next((row for row in rows if row), [])
    except csv.Error as error:
        raise CorruptError(f"column names in the first row cannot be read: {error}") from error
    if size == NAMES_BYTES:
        raise CorruptError(f"the first row has more than {NAMES_BYTES} bytes")
    plain = [name.encode("utf-8", "replace").decode() for name in header]
    return given or _distinct(plain), size


def _distinct(names: Sequence[str]) -> list[str]:
    """Return distinct names: a repeated one becomes ``name_2``."""
    used: dict[str, None] = {}
    for name in names:
        number, free = 1, name
        while free in used or (number > 1 and free in names):
            number += 1
            free = f"{name}_{number}"
        used[free] = None
    return list(used)


def _ended(beginning: bytes, rest: BlockFile) -> Iterator[bytes]:
    """Yield the blocks, then a newline: without one Arrow drops a single row."""
    block = beginning
    while block:
        yield block
        block = rest.read(NAMES_BYTES)
    rest.check()
    yield b"\n"


class _Reading:
    """Rows after the header. A batch is held until Arrow has read the next one, which may fail."""

    def __init__(
        self, names: Sequence[str], blocks: Iterator[bytes], source: ObjectsSource
    ) -> None:
        self._file = BlockFile(blocks)
        self._unfit: deque[pc.InvalidRow] = deque()
        """Rows of the wrong width to be yielded."""
        self._position = 0
        self._seen = 0
        """Number of rows that Arrow has read."""
        self._reader = pc.open_csv(
            pa.PythonFile(self._file, "r"),
            pc.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=names),
            pc.ParseOptions(
                delimiter=source.separator,
                quote_char=source.quote or False,
                escape_char=source.escape or False,
                newlines_in_values=True,
                invalid_row_handler=self._note,
            ),
            pc.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=chosen(source, names),
            ),
        )

    def bodies(self) -> Iterator[pa.BinaryArray | str]:
        for batch in self._sound():
            first = 0
            while first < batch.num_rows:
                yield from self._given_unfit()
                last = batch.num_rows
                if self._unfit:
                    last = min(last, first + self._unfit[0].number - 1 - self._position)
                self._position += last - first
                yield from texts_of(batch[first:last])
                first = last
        yield from self._given_unfit()
        self._file.check()

    def _sound(self) -> Iterator[pa.RecordBatch]:
        held = None
        while True:
            try:
                batch = next(self._reader, None)
            except pa.ArrowInvalid as error:
                if held is not None:
                    yield held
                raise CorruptError(f"invalid CSV: {error}") from error
            if batch is None and self._file.error:
                if self._unfit and self._unfit[-1].number == self._seen:
                    self._unfit.pop()
                elif held is not None:
                    held = held[:-1]
            if held is not None:
                yield held
            if batch is None:
                return
            held = batch
            self._seen += batch.num_rows

    def _given_unfit(self) -> Iterator[pa.BinaryArray | str]:
        while self._unfit and self._unfit[0].number - 1 == self._position:
            row = self._unfit.popleft()
            self._position += 1
            yield f"csv: {row.actual_columns} values, expected {row.expected_columns}"
            yield pa.array([row.text.encode("utf-8", "surrogateescape")], pa.binary())

    def _note(self, row: pc.InvalidRow) -> str:
        self._unfit.append(row)
        self._seen += 1
        return "skip" if len(self._unfit) < MOST_UNFIT else "error"
