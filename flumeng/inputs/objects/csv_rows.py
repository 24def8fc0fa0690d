"""Rows of CSV as JSON. All values are texts, exactly as they stand there; the first row has their
names. An empty line is no row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.csv as pc

from flumeng.errors import CorruptError
from flumeng.inputs.objects.block_file import BlockFile
from flumeng.inputs.objects.opened import Opened
from flumeng.inputs.objects.parts import Rows, numbered, texts_of
from flumeng.inputs.objects.text import text_from, without_mark

BLOCK_BYTES = 4 << 20
"""A row is no longer than this."""
NAMES_BYTES = 1 << 20
"""Nor is the first row longer than that."""


def parts(opened: Opened, encoding: str, start: int, end: int) -> Iterator[Rows]:
    """Rows [start, end). Raises CorruptError behind the last row that has the names' number of
    values, and before the last row that was read when the item is damaged behind it: nobody knows
    whether that one is whole."""
    _, blocks = text_from(opened, encoding, 0)
    with opened.explained():
        yield from numbered(_bodies(without_mark(blocks)), start, end)


def _bodies(blocks: Iterator[bytes]) -> Iterator[pa.BinaryArray]:
    first = BlockFile(blocks)
    beginning = first.read(NAMES_BYTES)
    if not beginning.strip(b"\r\n"):
        first.check()
        return
    source = BlockFile(_ended(beginning, first))
    unfit: list[pc.InvalidRow] = []
    reader = pc.open_csv(
        pa.PythonFile(source, "r"),
        pc.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        pc.ParseOptions(newlines_in_values=True, invalid_row_handler=partial(_note, unfit)),
        pc.ConvertOptions(
            check_utf8=False, column_types=dict.fromkeys(_names(beginning), pa.string())
        ),
    )
    if any(kind != pa.string() for kind in reader.schema.types):
        raise CorruptError("the names in its first row cannot be read")
    for batch in _sound(reader, source, unfit):
        yield from texts_of(batch)


def _ended(beginning: bytes, rest: BlockFile) -> Iterator[bytes]:
    """All of it, and a line end: without one Arrow takes a first row that is the last for none."""
    block = beginning
    while block:
        yield block
        block = rest.read(NAMES_BYTES)
    rest.check()
    yield b"\n"


def _names(beginning: bytes) -> list[str]:
    rows = csv.reader(io.StringIO(beginning.decode("utf-8", "replace"), newline=""))
    return next(row for row in rows if row)


def _note(unfit: list[pc.InvalidRow], row: pc.InvalidRow) -> str:
    unfit.append(row)
    return "skip"


def _sound(
    reader: pc.CSVStreamingReader, source: BlockFile, unfit: list[pc.InvalidRow]
) -> Iterator[pa.RecordBatch]:
    """What is sure to be read well, one batch behind the reader; then the error, if there is."""
    row = 0
    held = None
    while True:
        try:
            batch = next(reader, None)
        except pa.ArrowInvalid as error:
            if held is not None:
                yield held
            raise CorruptError(f"what follows is no CSV: {error}") from error
        if batch is None and source.error and held is not None:
            held = held[:-1]
        if held is not None:
            yield held
        held = batch
        row += 0 if batch is None else batch.num_rows
        if unfit and row >= (good := unfit[0].number - 2):  # the names are row 1
            if held is not None:
                yield held[: held.num_rows - (row - good)]
            raise CorruptError(
                f"row {good + 1} has {unfit[0].actual_columns} values, and the first row has "
                f"{unfit[0].expected_columns} names"
            )
        if batch is None:
            break
    source.check()
