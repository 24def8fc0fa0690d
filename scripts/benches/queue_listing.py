"""Objects listed into a queue in a real ZooKeeper, by the finder of a discovery task.

A flow lists empty objects with ``order: any``, and what was seen in files. They are appended to
eight lanes, and a thread acks all that is there each second, in one transaction, as collect tasks
do with their batches. Segments that are acked go. Counted are objects a second from the first look
until the last one is appended, transactions until the queue is empty as ZooKeeper counts them, and
then the bytes of all that the flow has in ZooKeeper, names included.

The objects of S3 lie on versitygw where it is to be had (Go builds it once), else on moto's server,
which is slow itself. A bare client lists them too: its figure is told beside, with what is no key.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benches.server import transactions
from flumeng.config import parse_flow
from flumeng.connectors.api.finding import Before, FindingTask
from flumeng.connectors.objects.finder import ObjectsFinder
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT, ANY, Expected, Put, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.servers.s3 import REGION, RealS3, build
from tests.testkit.store import RealZooKeeper
from zkschema import paths
from zkschema.records import Ack

FLOW = "bench"
IN_DIRECTORY = 1_000
ACK_SECONDS = 1.0
ROOM_SECONDS = 0.05
PUT_AT_ONCE = 16
PATIENCE_SECONDS = 1_800.0


def local(place: Path, objects: int) -> dict[str, object]:
    for number in range(objects):
        directory = place / "in" / f"{number // IN_DIRECTORY:05}"
        if not number % IN_DIRECTORY:
            directory.mkdir(parents=True)
        os.close(os.open(directory / f"access-{number:08}.log", os.O_CREAT | os.O_WRONLY))
    source = f'{{paths: ["{place}/in/*/*"], settle_seconds: 0, seen_in: "{place}/seen"}}'
    with _zookeeper(place) as (server, store):
        before = transactions(server.port)
        seconds, cpu = _listed(store, source, objects)
        writes = transactions(server.port) - before
        stored = _bytes(store)
    _tell(f"local: {cpu / objects * 1e6:.1f} CPU seconds of the finder for a million objects")
    return {
        "listed_per_second": round(objects / seconds),
        "zk_writes_per_1000": round(writes / objects * 1000, 2),
        "zk_bytes_after_1m": round(stored / objects * 1_000_000) if objects < 10**6 else stored,
    }


def s3(place: Path, objects: int) -> dict[str, object]:
    build()
    server = RealS3(place / "s3")
    server.start()
    os.environ |= server.environment
    try:
        names = [f"in/{n // IN_DIRECTORY:05}/access-{n:08}.log" for n in range(objects)]
        with ThreadPoolExecutor(PUT_AT_ONCE) as pool:
            list(pool.map(lambda name: _put(server, name), names))
        bare = _bare(server, objects)
        at, seen = server.location("in/*/*"), server.location("seen")
        source = f'{{paths: ["{at}"], settle_seconds: 0, seen_in: "{seen}"}}'
        with _zookeeper(place) as (_, store):
            seconds, _ = _listed(store, source, objects)
    finally:
        server.stop()
    kind = "versitygw" if server.keeps else "moto"
    _tell(f"S3 ({kind}): a bare client lists {objects / bare:.0f} objects a second")
    return {"listed_per_second_s3": round(objects / seconds)}


def _put(server: RealS3, name: str) -> None:
    with server.files.open_output_stream(f"{server.bucket}/{name}"):
        pass


def _bare(server: RealS3, objects: int) -> float:
    """The seconds in which a client of its own lists the bucket, one page after the other."""
    import botocore.session  # noqa: PLC0415  an extra
    from botocore.config import Config  # noqa: PLC0415

    client = botocore.session.Session().create_client(
        "s3",
        region_name=REGION,
        endpoint_url=server.endpoint,
        config=Config(s3={"addressing_style": "path"}),
    )
    began, found = time.monotonic(), 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=server.bucket):
        found += len(page.get("Contents", ()))
    assert found == objects, f"{found} of {objects}"
    return time.monotonic() - began


@contextmanager
def _zookeeper(place: Path) -> Iterator[tuple[RealZooKeeper, Store]]:
    server = RealZooKeeper(place / "zookeeper")
    server.start()
    store = connect(f"{server.address}/bench")
    try:
        tree.init(store)
        yield server, store
    finally:
        store.close()
        server.kill()


def _listed(store: Store, source: str, objects: int) -> tuple[float, float]:
    """Seconds until all were appended, and CPU seconds of this process until the queue is empty."""
    text = f"{{flow: {FLOW}, sources: [objects: {source}], sinks: [noop]}}"
    apply_flow(Operator(store, "bench", "", time.time()), text)
    (part,) = parse_flow(text).partitioned
    assert isinstance(part.options, ObjectsSource)
    finder = ObjectsFinder(part.options, store, FindingTask(FLOW, 1))
    ended = threading.Event()
    reader = threading.Thread(target=_ack, args=(store, ended))
    began, cpu, appended_at = time.monotonic(), time.process_time(), 0.0
    reader.start()
    try:
        while not appended_at or _kept(store):
            assert time.monotonic() - began < PATIENCE_SECONDS, "it takes too long"
            if not finder.find(Before()).more:
                time.sleep(ROOM_SECONDS)
            if not appended_at and _appended(store) == objects:
                appended_at = time.monotonic()
    finally:
        ended.set()
        reader.join()
        finder.close()
    assert _appended(store) == objects, "an object is an item twice"
    return appended_at - began, time.process_time() - cpu


def _appended(store: Store) -> int:
    head = queues.head(store, FLOW)
    return sum(head.value.next.values()) if head else 0


def _kept(store: Store) -> bool:
    """Whether there is any segment."""
    head = queues.head(store, FLOW)
    assert head is not None
    lanes = queues.lanes(store, FLOW, head.value, head.value.next)
    return any(lane.segments for lane in lanes.values())


def _ack(store: Store, ended: threading.Event) -> None:
    expected: Expected = ABSENT
    while not ended.wait(ACK_SECONDS):
        head = queues.head(store, FLOW)
        if head is None or not head.value.next:
            continue
        ends = {
            queues.lane_partition(lane, head.value.id): items.offset_of(number)
            for lane, number in head.value.next.items()
        }
        store.commit(
            [
                Put(ack_path(FLOW, name), Ack(epoch=1, offset=at), expected)
                for name, at in ends.items()
            ]
        )
        expected = ANY


def _bytes(store: Store) -> int:
    """What lies below ``/queues`` and the flow's acks: names and data."""
    kept = (str(paths.queue(FLOW)), str(paths.acks(FLOW)))
    return sum(
        len(path) + len(data) for path, data in store.dump().items() if path.startswith(kept)
    )


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
