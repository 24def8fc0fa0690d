"""Samples the newest events of a running flow from its journals. Nothing is acked or written; a
server sends a bounded part of its new events once a second, and only while they are shown. Skipped
events are counted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from queue import Empty, Full, Queue

import pyarrow as pa

from flumeng.agent.dryrun import steps
from flumeng.agent.dryrun.filter_tree import FilterTree, Output
from flumeng.agent.dryrun.running import joined
from flumeng.config import FlowSpec
from flumeng.config.multiline import Multiline
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.control.zookeeper import Store
from flumeng.events.journal_names import flow_of
from flumeng.journal.log.contract import Position
from flumeng.journal.log.errors import DataLossError, NotServedError, TapsBusyError
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import FlumengError, UserError
from zkschema import paths

BLOCK_EVENTS = 1000
"""Most events read from a journal in one second; the newest are read."""
LOOK_SECONDS = 1.0
CALL_SECONDS = 3.0
MOST_SERVERS = 16
WAITING = 2
"""Most blocks queued to be shown."""
STOP_SECONDS = 0.2


STATEFUL = ("dedupe", "limit")


def as_tapped(spec: FlowSpec, at: str | None, where: str | None) -> FlowSpec:
    """Return the flow cut after the step ``at``, with ``where`` as its last filter. Raises
    UserError when the step is unknown, or no node serves the events of the flow."""
    for source in spec.sources:
        if isinstance(source.options, KafkaSource):
            topics = ", ".join(source.options.topics)
            raise UserError(
                f"flow {spec.flow} reads topics of Kafka, which no node of the cluster serves: "
                f"pipe {topics} from a Kafka consumer into `flumeng flow try`"
            )
        if source.name == "flow":
            raise UserError(f"flow {spec.flow} reads another flow: tap the other flow")
    if at is None and where is None:
        return spec
    if at is None and spec.branches:
        raise UserError("--where in a flow with branches needs --at STEP")
    return steps.as_far_as(spec, steps.find(spec, at or "sinks"), where)


def differences(spec: FlowSpec, servers: int) -> Iterator[str]:
    """Yield possible differences from the cluster's results, since not all events are read."""
    if servers > MOST_SERVERS:
        yield f"{servers} servers have events of the flow; only {MOST_SERVERS} of them are read"
    partial = [
        part.name for part in spec.all_filters if part.name in STATEFUL or part.options.regroups
    ]
    partial += ["multiline"] if spec.multiline is not None else []
    if partial:
        names = ", ".join(dict.fromkeys(partial))
        yield f"{names}: sees only the sampled events, so its results differ from the flow's"


def end_of(output: Output, spec: FlowSpec) -> str | None:
    """Return where the events ended: the dead letters of a filter or sink, or a branch. None at the
    end of a flow without branches."""
    if output.failed:
        return f"dead letter of {output.failed}"
    return output.branch if spec.branches else None


def servers(store: Store, flow: str) -> list[str]:
    """Return the addresses that serve the flow's journals. Raises UserError when there are none."""
    journals = [name for name in store.children(paths.journals()) if flow_of(name) == flow]
    addresses = Addresses(store)
    addresses.reread(journals)
    distinct = sorted(set(addresses.of(journals).values()))
    if not distinct:
        raise UserError(f"no live node serves a journal of flow {flow}: see `flumeng journal list`")
    return distinct


@dataclass(frozen=True)
class Lost:
    """A server that failed and is not queried again."""

    address: str
    error: FlumengError


class Tap:
    """Reads a flow's new events from its creation until ``stop``, from at most MOST_SERVERS random
    addresses. ``came``: events journaled meanwhile; ``given``: events yielded by ``blocks``."""

    def __init__(self, flow: str, addresses: Collection[str]) -> None:
        self._flow = flow
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._queue: Queue[pa.RecordBatch | Lost] = Queue(WAITING)
        self.came = self.given = 0
        self.lost: list[Lost] = []
        chosen = random.sample(sorted(addresses), min(len(addresses), MOST_SERVERS))
        # No daemons: a process that ends within a call of gRPC crashes.
        self._threads = [
            threading.Thread(target=self._follow, args=(address,), name=f"tap {address}")
            for address in chosen
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop reading and wait for the running calls, which end soon."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def blocks(self, seconds: float) -> Iterator[pa.RecordBatch | Lost]:
        """Yield, for ``seconds``, blocks of consecutive events of one journal in READ_SCHEMA, and
        servers that failed. Raises the last server's error once all have failed."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                item = self._queue.get(timeout=left)
            except Empty:
                return
            if isinstance(item, Lost):
                self.lost.append(item)
                if len(self.lost) == len(self._threads):
                    raise item.error
            else:
                self.given += item.num_rows
            yield item

    def _follow(self, address: str) -> None:
        seen: dict[str, int] = {}
        begun = False
        with JournalClient(address, CALL_SECONDS) as client:
            while not self._stopped.is_set():
                try:
                    for journal, position in client.positions().items():
                        if flow_of(journal) == self._flow:
                            start = seen.get(journal, 0 if begun else position.safe)
                            seen[journal] = position.safe
                            self._read(client, journal, start, position)
                    begun = True
                except TapsBusyError:
                    pass
                except FlumengError as error:
                    self._put(Lost(address, error))
                    return
                self._stopped.wait(LOOK_SECONDS)

    def _read(self, client: JournalClient, journal: str, start: int, position: Position) -> None:
        if position.safe <= start:
            return
        with self._lock:
            self.came += position.safe - start
        start = max(start, position.floor, position.safe - BLOCK_EVENTS)
        try:
            batches = client.tap(journal, start, position.safe)
        except (DataLossError, NotServedError):
            return  # trimmed, or moved to another server
        for events in batches:
            self._put(events)

    def _put(self, item: pa.RecordBatch | Lost) -> None:
        """Queue an item; blocks until there is room, so that nothing is read meanwhile."""
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=STOP_SECONDS)
            except Full:
                continue
            return


def shown(
    tap: Tap, tree: FilterTree, multiline: Multiline | None, rate: int, seconds: float
) -> Iterator[Output | Lost]:
    """Yield filtered events, at most ``rate`` a second, and servers that failed. Lines are joined
    within a block only. Raises as ``Tap.blocks`` and the filters."""
    pace = Pace(rate)
    for block in tap.blocks(seconds):
        if isinstance(block, Lost):
            yield block
            continue
        pieces = joined([[block]], multiline, block["seq"][0].as_py())
        ends = [end for piece in pieces for end in tree.run(piece) if end.batches]
        for number, end in enumerate(ends):
            (events,) = pa.Table.from_batches(end.batches).combine_chunks().to_batches()
            few = spread(events, max(1, pace.room() // (len(ends) - number)))
            pace.shown(few.num_rows)
            yield replace(end, batches=[few])


class Pace:
    """A rate limit of ``rate`` events a second, which is also the largest burst."""

    def __init__(
        self,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._room = float(rate)
        self._at = clock()

    def room(self) -> int:
        """Return how many events may be shown now; waits until it is at least one."""
        while True:
            now = self._clock()
            self._room = min(float(self._rate), self._room + (now - self._at) * self._rate)
            self._at = now
            if self._room >= 1:
                return int(self._room)
            self._sleep((1 - self._room) / self._rate)

    def shown(self, events: int) -> None:
        self._room -= events


def spread(events: pa.RecordBatch, most: int) -> pa.RecordBatch:
    if events.num_rows <= most:
        return events
    step = events.num_rows / most
    return events.take(pa.array([int(number * step) for number in range(most)]))
