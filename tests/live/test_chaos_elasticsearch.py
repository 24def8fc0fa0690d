"""The promise of the sink ``elasticsearch``: whichever process is killed, each accepted event is a
document once, or a dead letter with its reason.

Events come over TCP while collector, Spark's Python worker and Elasticsearch are killed with
SIGKILL at random moments, a proxy loses answers, the write queue overflows and the index is
read-only at times. ``FLUMENG_CHAOS_SECONDS`` says for how long; without it each is killed once.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import elastic_transport
import pyarrow.dataset as ds
import pytest
from elasticsearch import ApiError, Elasticsearch

from flumeng.agent.standalone.embedded import free_port
from flumeng.connectors.elasticsearch.template import PROPERTIES
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.chaos import CHUNK, Cluster, Watcher, chaos_seconds, chaos_seed, kill_at_random
from tests.live.own_server import need_own
from tests.testkit.servers.elasticsearch import RealElasticsearch
from tests.testkit.servers.lossy_proxy import LossyProxy
from tests.testkit.waiting import retry, wait_for

REFUSED_EVERY = 50
"""The process id of every so many events is not a number, so the index refuses it."""
LOSING = 0.15
PAUSE_SECONDS = 0.4 if chaos_seconds() else 1.0
PAGE = 10_000

FLOW_TEXT = """
flow: chaos
sources:
  - syslog: {{listen: "127.0.0.1:{port}", protocol: tcp}}
delivery: exactly-once
batch: {{seconds: 0.3, events: 20000}}
filters:
  - parse: {{format: syslog}}
sinks:
  - elasticsearch: {{hosts: ["{address}"], index: "chaos-%Y"}}
dead_letters:
  files: {{path: "{letters}", format: parquet}}
"""


class Sender(threading.Thread):
    """Sends numbered lines until ``enough`` is set; its peer takes all of them."""

    def __init__(self, port: int) -> None:
        super().__init__(name="sender", daemon=True)
        self.sent = 0
        self.enough = threading.Event()
        self._port = port

    def run(self) -> None:
        with contextlib.closing(self._connection()) as connection:
            while not self.enough.is_set():
                numbers = range(self.sent, self.sent + CHUNK)
                connection.sendall(b"".join(map(_line, numbers)))
                self.sent += CHUNK
                time.sleep(PAUSE_SECONDS)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1):
                pass

    def _connection(self) -> socket.socket:
        address = ("127.0.0.1", self._port)
        return retry(lambda: socket.create_connection(address, timeout=60), OSError)


def _line(number: int) -> bytes:
    process = "none" if number % REFUSED_EVERY == 0 else str(number % 1000)
    return (
        f"<13>1 2026-11-20T10:00:00Z sender chaos {process} - - n={number} {'x' * 120}\n".encode()
    )


class Blocker(threading.Thread):
    """Makes the index read-only for a second, again and again."""

    def __init__(self, client: Elasticsearch, chance: random.Random) -> None:
        super().__init__(name="blocker", daemon=True)
        self.blocked = 0
        self.enough = threading.Event()
        self._client = client
        self._chance = chance

    def run(self) -> None:
        while not self.enough.wait(self._chance.uniform(1, 6)):
            self.blocked += self._set(True)
            time.sleep(1)
            while not self._set(None):
                time.sleep(0.2)

    def _set(self, value: bool | None) -> bool:
        with contextlib.suppress(ApiError, elastic_transport.TransportError):
            self._client.indices.put_settings(
                index="chaos-*", settings={"index.blocks.write": value}
            )
            return True
        return False


@pytest.fixture
def elasticsearch(tmp_path: Path) -> Iterator[RealElasticsearch]:
    """A server with a small write queue."""
    queue = {"thread_pool.write.size": "1", "thread_pool.write.queue_size": "6"}
    server = RealElasticsearch(tmp_path / "elasticsearch", queue)
    need_own(server)
    try:
        server.launch()
    except (UserError, UnavailableError) as error:
        pytest.skip(f"no Elasticsearch: {error}")
    yield server
    server.kill()


@pytest.mark.long
def test_every_accepted_event_is_a_document_once_or_a_dead_letter(
    elasticsearch: RealElasticsearch, cluster: Cluster, tmp_path: Path
) -> None:
    chance = random.Random(chaos_seed())
    elasticsearch.wait_answering()
    client = elasticsearch.client()
    mappings = {"properties": PROPERTIES | {"procid": {"type": "integer"}}}
    client.indices.put_index_template(
        name="chaos",
        index_patterns=["chaos-*"],
        template={"mappings": mappings, "settings": {"number_of_shards": 4}},
    )
    proxy = LossyProxy(elasticsearch.port, random.Random(chance.random()))
    port, letters = free_port(), tmp_path / "letters"
    store = connect(cluster.hosts)
    text = FLOW_TEXT.format(port=port, address=proxy.address, letters=letters)
    apply_flow(Operator(store, "test", "", 0.0), text)
    watcher = Watcher(store)
    sender, blocker = Sender(port), Blocker(client, random.Random(chance.random()))
    sender.start()
    wait_for_documents(client)
    proxy.losing = LOSING
    blocker.start()

    def restart() -> None:
        elasticsearch.kill()
        time.sleep(chance.uniform(0, 2))
        elasticsearch.start()

    until = time.monotonic() + chaos_seconds()
    kinds = ("collector", "executor")
    kill_at_random(cluster, chance, kinds, {"elasticsearch": restart}, times=1, until=until)
    wait_for_trouble(proxy, blocker)
    sender.enough.set()
    sender.join(60)
    blocker.enough.set()
    blocker.join(60)
    assert not sender.is_alive() and not blocker.is_alive()
    proxy.losing = 0.0
    watcher.settle(events=sender.sent)

    accepted = {
        (journal, seq)
        for journal, position in watcher.positions().items()
        for seq in range(position.safe)
    }
    assert len(accepted) == sender.sent
    refused = ds.dataset(letters, format="parquet", exclude_invalid_files=False).to_table(
        columns=["journal", "seq", "dead_reason", "dead_place"]
    )
    keys = list(zip(refused["journal"].to_pylist(), refused["seq"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys) == sender.sent // REFUSED_EVERY
    assert all(
        reason.startswith("document_parsing_exception: ")
        for reason in refused["dead_reason"].to_pylist()
    )
    assert set(refused["dead_place"].to_pylist()) == {"sinks[0].elasticsearch"}
    documents = list(indexed(client))
    assert len(documents) == len(set(documents))
    assert set(documents) == accepted - set(keys)
    print(f"{sender.sent} events, {len(keys)} refused, {proxy.lost} answers lost")
    proxy.close()
    client.close()
    store.close()


def wait_for_documents(client: Elasticsearch) -> None:
    """Errors are those of shards that are being made."""
    wait_for(
        lambda: client.count(index="chaos-*")["count"], "nothing is indexed", ignoring=ApiError
    )


def wait_for_trouble(proxy: LossyProxy, blocker: Blocker) -> None:
    wait_for(
        lambda: proxy.lost and blocker.blocked,
        lambda: f"{proxy.lost} lost, {blocker.blocked} times blocked",
    )


def indexed(client: Elasticsearch) -> Iterator[tuple[str, int]]:
    """Journal and number of each document; its ``_id`` says the same."""
    client.indices.refresh(index="chaos-*")
    after = None
    while True:
        page = client.search(
            index="chaos-*",
            size=PAGE,
            sort=["journal", "seq"],
            search_after=after,
            source_includes=["journal", "seq"],
        )["hits"]["hits"]
        if not page:
            return
        for hit in page:
            source = hit["_source"]
            assert hit["_id"] == f"{source['journal']}-{source['seq']}"
            yield source["journal"], source["seq"]
        after = page[-1]["sort"]
