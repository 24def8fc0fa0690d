"""Asks all nodes concurrently with a deadline; names the nodes that do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from flumeng.control.commands.lookup import readable_by_name
from flumeng.control.queries.read_cache import ReadCache
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from zkschema import paths
from zkschema.records import LiveNode

if TYPE_CHECKING:
    from flumeng.journal.serving.client import JournalClient

CALL_SECONDS = 1.5
ASK_SECONDS = 2.5
MOST_THREADS = 256
MORE_THREADS = 16
"""So many ask at first, and so many more whenever none answers for ``GROW_SECONDS``: nodes that
answer need few, and silent ones hold nobody up."""
GROW_SECONDS = 0.05

A = TypeVar("A")

Answers = Mapping[str, Mapping[str, A]]
"""The merged answers of a node's workers, by node."""


def client(address: str, seconds: float = CALL_SECONDS) -> JournalClient:
    from flumeng.journal.serving.client import JournalClient  # noqa: PLC0415  loads pyarrow

    return JournalClient(address, seconds)


def ask_all(
    cache: ReadCache, ask: Callable[[str], Mapping[str, A]]
) -> tuple[Answers[A], tuple[str, ...]]:
    """Return the answers of live nodes that serve partitions, and nodes with a silent process."""
    names = cache.children(paths.live_nodes())
    return _ask(cache, names, ask, lambda live: (*live.addresses, live.discovery))


def ask_ingest(
    cache: ReadCache, nodes: Sequence[str], ask: Callable[[str], Mapping[str, A]]
) -> tuple[Answers[A], tuple[str, ...]]:
    """Return the answers of the ingest workers on these nodes, and nodes that did not answer."""
    return _ask(cache, nodes, ask, lambda live: live.addresses)


def ask_collectors(
    cache: ReadCache, nodes: Sequence[str], ask: Callable[[str], Mapping[str, A]]
) -> tuple[Answers[A], tuple[str, ...]]:
    """Return the answers of the collectors on these nodes, and the nodes that did not answer."""
    return _ask(cache, nodes, ask, lambda live: (live.collector,))


def _ask(
    cache: ReadCache,
    nodes: Sequence[str],
    ask: Callable[[str], Mapping[str, A]],
    addresses: Callable[[LiveNode], Sequence[str]],
) -> tuple[Answers[A], tuple[str, ...]]:
    live = readable_by_name(cache, paths.live_node, nodes)
    served = [(name, a) for name in live for a in addresses(live[name].value) if a]
    answers = _together(ask, list(dict.fromkeys(address for _, address in served)))
    by_node: dict[str, dict[str, A]] = {}
    silent = []
    for name, address in served:
        answer = answers.get(address)
        if answer is None:
            silent.append(name)
        else:
            by_node.setdefault(name, {}).update(answer)
    return by_node, tuple(dict.fromkeys(silent))


def _together(
    ask: Callable[[str], Mapping[str, A]], addresses: Sequence[str]
) -> dict[str, Mapping[str, A] | None]:
    """Return the answers by address, None or missing without one. Raises UserError if none answers
    and one refuses. Threads are not daemons: gRPC crashes a process that exits within a call."""
    refused: list[UserError] = []
    waiting: SimpleQueue[str] = SimpleQueue()
    done: SimpleQueue[tuple[str, Mapping[str, A] | None]] = SimpleQueue()
    for address in addresses:
        waiting.put(address)

    deadline = time.monotonic() + ASK_SECONDS

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                address = waiting.get_nowait()
            except Empty:
                return
            answer = None
            try:
                answer = ask(address)
            except (UnavailableError, CorruptError):
                continue
            except UserError as error:
                refused.append(error)
            finally:
                done.put((address, answer))

    answers: dict[str, Mapping[str, A] | None] = {}
    threads, wanted = 0, MORE_THREADS
    while len(answers) < len(addresses):
        for _ in range(threads, min(wanted, len(addresses), MOST_THREADS)):
            threading.Thread(target=work, name=f"asking {threads}", daemon=False).start()
            threads += 1
        left = deadline - time.monotonic()
        try:
            address, answer = done.get(timeout=max(0.0, min(left, GROW_SECONDS)))
        except Empty:
            if left <= 0:
                break
            wanted = threads + MORE_THREADS
        else:
            answers[address] = answer
    if refused and all(answer is None for answer in answers.values()):
        raise refused[0]
    return answers
