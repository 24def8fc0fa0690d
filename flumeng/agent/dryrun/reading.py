"""Reads lines from files and pipes as soon as they arrive, in large pieces when possible."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import TypeVar

from flumeng.connectors.api.framing import Framer, Messages
from flumeng.connectors.tail.file_text import FileText
from flumeng.connectors.tail.options import UTF_8
from flumeng.platform.errors import UserError

T = TypeVar("T")
R = TypeVar("R")

STANDARD_INPUT = Path("-")
PIECE_BYTES = 4 << 20
PIPE_BYTES = 1 << 20
"""The size up to which every user may enlarge a pipe."""
WAITING = 4
"""Most pieces queued between two threads."""


def lines(inputs: Sequence[Path], max_line_bytes: int, encoding: str = UTF_8) -> Iterator[Messages]:
    """Yield the lines of files, or else of standard input, in UTF-8 without a byte order mark.
    Lines of a pipe are yielded as they arrive. Raises UserError for an unreadable file."""
    for path in inputs or [STANDARD_INPUT]:
        try:
            with _opened(path) as descriptor:
                yield from _lines_of(descriptor, max_line_bytes, encoding)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    if path == STANDARD_INPUT:
        with contextlib.suppress(OSError):  # only pipes have a size
            fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        yield 0
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lines_of(descriptor: int, max_line_bytes: int, encoding: str) -> Iterator[Messages]:
    framer = Framer("newline", max_line_bytes)
    first = os.read(descriptor, PIECE_BYTES)
    text = FileText(encoding, first)
    decoder = None if text.codec is None else codecs.getincrementaldecoder(text.codec)("replace")
    pieces = iter(lambda: os.read(descriptor, PIECE_BYTES), b"")
    for piece in chain([first[text.mark_bytes :]], pieces):
        utf8 = piece if decoder is None else decoder.decode(piece).encode()
        yield from framer.feed(utf8, len(utf8))
    if decoder is not None:
        rest = decoder.decode(b"", final=True).encode()
        yield from framer.feed(rest, len(rest))
    yield from framer.end()


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield items that another thread prefetches; its errors are raised here. After the caller
    stops the thread ends with the next item; it does not keep the process alive."""
    queue: Queue[T | _End] = Queue(WAITING)
    stopped = Event()

    def take() -> None:
        try:
            for item in items:
                if stopped.is_set():
                    return
                queue.put(item)
        except BaseException as error:
            queue.put(_End(error))
        else:
            queue.put(_End())

    Thread(target=take, name="ahead", daemon=True).start()
    try:
        while True:
            item = queue.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return
    finally:
        stopped.set()
        while not queue.empty():  # makes room for a waiting item
            queue.get_nowait()


def in_order(work: Callable[[T], R], items: Iterator[T]) -> Iterator[R]:
    """Yield the result of ``work`` for each item, computed by another thread, in order. An error is
    raised in place of its result. The process's end waits only for the item in work."""
    pool = ThreadPoolExecutor(1, "in-order")
    try:
        for result in ahead(pool.submit(work, item) for item in items):
            yield result.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
