"""Connections from primaries to the nodes that hold replicas, one per node. Each send is one chunk,
so a replica that catches up delays no other. After a broken connection the primaries resend."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Any

import pyarrow as pa
from pyarrow import flight

from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.replication.messages import Begin, Frames, Reset, ToFollower
from flumeng.journal.serving import replica_wire
from flumeng.journal.serving.client import connect
from flumeng.journal.serving.proof import Proof, of_process
from flumeng.journal.serving.replica_wire import Envelope
from flumeng.journal.serving.wire import FRAMES_SCHEMA
from flumeng.platform.errors import FlumengError
from flumeng.platform.rate_limit import RateLimit
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.25
PING_SECONDS = 1.0
LEAST = 32 << 20
BUSY_SECONDS = 1.0
"""Seconds after an append during which more appends are expected."""
WHOLE_BYTES, PART_BYTES = 8 << 20, 1 << 20
"""Bytes at which a chunk ends; the second for replicas that catch up while events arrive."""


class Throttle:
    """Limits a process's bytes to replicas that catch up while events arrive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken, self._since, self._took_at = 0, 0.0, 0.0
        self._limit = RateLimit(LEAST, 0.0)
        self._due_at = 0.0

    def took(self, nbytes: int, now: float) -> None:
        with self._lock:
            self._taken += nbytes
            self._took_at = now
            if (seconds := now - self._since) >= BUSY_SECONDS:
                self._limit.rate = max(LEAST, 2 * self._taken / seconds)
                self._taken, self._since = 0, now

    def due_at(self, now: float) -> float:
        return self._due_at if self._is_busy(now) else now

    def at_once(self, now: float) -> int:
        return PART_BYTES if self._is_busy(now) else WHOLE_BYTES

    def _is_busy(self, now: float) -> bool:
        return now - self._took_at < BUSY_SECONDS

    def sent(self, nbytes: int, now: float) -> None:
        with self._lock:
            self._due_at = now + self._limit.take(nbytes, now)


class Outbox:
    """The pending messages of a journal to a node: ``first``, then ``frames``."""

    def __init__(self, journal: ReplicatedJournal) -> None:
        self.journal = journal
        self.first: Begin | Reset | None = None
        self.frames: Frames | None = None

    def put(self, message: ToFollower) -> None:
        if not isinstance(message, Frames):
            self.first = message
            self.frames = None if isinstance(message, Begin) else self.frames
            return
        before = self.frames
        if before is not None and before.term == message.term and before.end >= message.start:
            message = message._replace(
                start=min(before.start, message.start), end=max(before.end, message.end)
            )
        self.frames = message


class Outboxes:
    """The outboxes for one node; replicas that catch up alternate with others. Not thread-safe."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._prompt: OrderedDict[str, Outbox] = OrderedDict()
        self._catching_up: OrderedDict[str, Outbox] = OrderedDict()
        self._their_turn = False

    @property
    def any_catching_up(self) -> bool:
        return bool(self._catching_up)

    def put(self, journal: ReplicatedJournal, message: ToFollower) -> None:
        name = journal.id
        waits = isinstance(message, Frames) and journal.is_catching_up(self._node)
        outbox = self._prompt.get(name)
        if outbox is None and waits:
            outbox = self._catching_up.setdefault(name, Outbox(journal))
        elif outbox is None:
            outbox = self._prompt[name] = self._catching_up.pop(name, Outbox(journal))
        outbox.put(message)

    def next(self, *, also_catching_up: bool) -> Outbox | None:
        lines = [self._prompt, self._catching_up] if also_catching_up else [self._prompt]
        for line in lines[::-1] if self._their_turn else lines:
            if line:
                self._their_turn = line is self._prompt
                return line.popitem(last=False)[1]
        return None

    def forget(self, journal: str) -> None:
        self._prompt.pop(journal, None)
        self._catching_up.pop(journal, None)

    def clear(self) -> None:
        self._prompt.clear()
        self._catching_up.clear()


class Links:
    """The connections of a process. ``address`` returns the address of a node's replicas, or ""."""

    def __init__(
        self,
        address: Callable[[str], str],
        throttle: Throttle,
        prove: Callable[[], Proof | None] = of_process,
    ) -> None:
        self._address, self._throttle, self._prove = address, throttle, prove
        self._links: dict[str, Link] = {}
        self._lock = threading.Lock()

    def send(self, node: str, journal: ReplicatedJournal, message: ToFollower) -> None:
        with self._lock:
            link = self._links.get(node)
            if link is None:
                link = Link(node, lambda: self._address(node), self._throttle, self._prove)
                self._links[node] = link
        link.put(journal, message)

    def alive_at(self, node: str) -> float:
        """Return when the node last answered, by the monotonic clock; -inf if never."""
        link = self._links.get(node)
        return link.alive_at if link else -inf

    def forget(self, journal: str) -> None:
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.forget(journal)

    def close(self) -> None:
        with self._lock:
            links, self._links = self._links, {}
        for link in links.values():
            link.close()


class Link:
    """A connection to one node; its two threads run while a journal here has a replica there."""

    def __init__(
        self,
        node: str,
        address: Callable[[], str],
        throttle: Throttle,
        prove: Callable[[], Proof | None],
    ) -> None:
        self._node, self._address = node, address
        self._throttle, self._prove = throttle, prove
        self._changed = threading.Condition()
        self._outboxes = Outboxes(node)
        self._journals: dict[str, ReplicatedJournal] = {}
        self._closed = threading.Event()
        self._runs = False
        self._failures, self._unread, self._unusable = (RateLimitedLog(log) for _ in range(3))
        self.alive_at = -inf

    def put(self, journal: ReplicatedJournal, message: ToFollower) -> None:
        with self._changed:
            self._journals[journal.id] = journal
            self._outboxes.put(journal, message)
            if not self._runs and not self._closed.is_set():
                self._runs = True
                threading.Thread(
                    target=self._run, name=f"replica {self._node}", daemon=True
                ).start()
            self._changed.notify()

    def forget(self, journal: str) -> None:
        with self._changed:
            self._journals.pop(journal, None)
            self._outboxes.forget(journal)

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify()

    def _run(self) -> None:
        while not self._closed.is_set():
            address = self._address()
            try:
                if address:
                    self._talk(address)
            except (flight.FlightError, pa.ArrowException, OSError, FlumengError) as error:
                text = str(error).partition(". gRPC client debug")[0]
                unreachable = "cannot reach the replicas on node %s at %s, and try again: %s"
                self._failures.warning(unreachable, self._node, address, text)
            time.sleep(RETRY_SECONDS)
            with self._changed:
                self._outboxes.clear()
            gone = [
                name
                for name, journal in list(self._journals.items())
                if not journal.reconnected(self._node)
            ]
            with self._changed:
                for name in gone:
                    self._journals.pop(name, None)
                if not self._journals:
                    self._runs = False
                    return

    def _talk(self, address: str) -> None:
        proof = self._prove()
        with connect(address, proof) as client:
            descriptor = flight.FlightDescriptor.for_command(replica_wire.REPLICA.encode())
            writer, reader = client.do_exchange(descriptor)
            broken = threading.Event()
            listening = threading.Thread(
                target=self._listen, args=(reader, broken), name=f"from {self._node}", daemon=True
            )
            try:
                writer.begin(FRAMES_SCHEMA)
                listening.start()
                while not self._is_over(broken):
                    if outbox := self._next(broken):
                        self._send_one(writer, outbox)
                    else:
                        writer.write_metadata(pa.py_buffer(replica_wire.PING))
            finally:
                reader.cancel()
                with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
                    writer.close()

    def _next(self, broken: threading.Event) -> Outbox | None:
        until = time.monotonic() + PING_SECONDS
        with self._changed:
            while not self._is_over(broken):
                now = time.monotonic()
                due_at = self._throttle.due_at(now)
                if outbox := self._outboxes.next(also_catching_up=now >= due_at):
                    return outbox
                if now >= until:
                    return None
                self._changed.wait(
                    min(until, due_at if self._outboxes.any_catching_up else until) - now
                )
            return None

    def _is_over(self, broken: threading.Event) -> bool:
        return self._closed.is_set() or broken.is_set() or not self._journals

    def _send_one(self, writer: Any, outbox: Outbox) -> None:
        journal = outbox.journal
        catches_up = journal.is_catching_up(self._node)
        at_most = self._throttle.at_once(time.monotonic()) if catches_up else WHOLE_BYTES
        try:
            state = journal.source_state_at_floor if outbox.first is not None else None
            key = journal.cipher.reference
            frames = outbox.frames
            rows = None
            if frames is not None and frames.start < frames.end:
                rows = _chunk(journal, frames.start, frames.end, at_most)
        except (FlumengError, OSError) as error:
            # Removed or damaged: the other journals are sent all the same.
            unread = "node %s gets no events of journal %s now: %s"
            self._unread.warning(unread, self._node, journal.id, error)
            return
        if outbox.first is not None:
            envelope = Envelope(journal.id, outbox.first, state, key)
            writer.write_metadata(replica_wire.buffer(envelope))
        if frames is None:
            return
        if rows is None:
            part = journal.part_of(frames, frames.start, frames.end)
            writer.write_metadata(replica_wire.buffer(Envelope(journal.id, part)))
            return
        batch, sent = rows
        part = journal.part_of(frames, frames.start, sent)
        writer.write_with_metadata(batch, replica_wire.buffer(Envelope(journal.id, part)))
        if catches_up:
            self._throttle.sent(batch.nbytes, time.monotonic())
        if sent < frames.end:
            self.put(journal, frames._replace(start=sent))

    def _listen(self, reader: Any, broken: threading.Event) -> None:
        try:
            while True:
                metadata = reader.read_chunk().app_metadata.to_pybytes()
                self.alive_at = time.monotonic()
                if metadata == replica_wire.PING:
                    continue
                envelope = replica_wire.decode(metadata)
                journal = self._journals.get(envelope.journal)
                if journal is not None and not isinstance(envelope.message, Begin | Frames | Reset):
                    journal.receive(self._node, envelope.message)
        except StopIteration:
            pass
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            log.debug("replicas on node %s: %s", self._node, error)
        except FlumengError as error:
            unusable = "cannot use an answer of the replicas on node %s, and try again: %s"
            self._unusable.warning(unusable, self._node, error)
        except Exception:
            log.exception("cannot use an answer of the replicas on node %s", self._node)
        finally:
            broken.set()
            with self._changed:
                self._changed.notify()


def _chunk(
    journal: ReplicatedJournal, start: int, end: int, at_most: int
) -> tuple[pa.RecordBatch, int]:
    frames: list[pa.Buffer] = []
    sizes = [0]
    for window in journal.frames(start, end):
        for frame in window:
            frames.append(frame)
            sizes.append(sizes[-1] + frame.size)
        if sizes[-1] >= at_most:
            break
    data = frames[0] if len(frames) == 1 else pa.py_buffer(bytearray().join(frames))
    # Not pa.array: that imports pandas, 50 MB in every ingest worker.
    offsets = pa.py_buffer(array("i", sizes))
    rows = pa.Array.from_buffers(pa.binary(), len(frames), [None, offsets, data])
    return pa.RecordBatch.from_arrays([rows], schema=FRAMES_SCHEMA), journal.end_of(frames[-1])
