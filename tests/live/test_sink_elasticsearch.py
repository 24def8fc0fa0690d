"""The sink against a real Elasticsearch, and against servers that are busy, small or forgetful."""

from __future__ import annotations

import hashlib
import ssl
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from elasticsearch import Elasticsearch as Client

from flumeng.connectors.api.dead_letters import Refuse, RefusedError
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.elasticsearch import cluster
from flumeng.connectors.elasticsearch.bulk import IndexEvents
from flumeng.connectors.elasticsearch.bulk_body import BulkBody
from flumeng.connectors.elasticsearch.options import RESERVED, Elasticsearch
from flumeng.connectors.elasticsearch.sink import ElasticsearchSink
from flumeng.events import identity
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.own_server import need_own
from tests.testkit.servers.bulk_server import BulkServer
from tests.testkit.servers.elasticsearch import RealElasticsearch
from tests.testkit.servers.lossy_proxy import LossyProxy
from tests.testkit.servers.tls import Authority, TlsFront

MAP = pa.map_(pa.string(), pa.string())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealElasticsearch]:
    """A server with a small write queue."""
    server = RealElasticsearch(
        tmp_path_factory.mktemp("elasticsearch"),
        {"thread_pool.write.size": "1", "thread_pool.write.queue_size": "2"},
    )
    try:
        server.start()
    except (UserError, UnavailableError) as error:
        pytest.skip(f"no Elasticsearch: {error}")
    yield server
    server.stop()


@pytest.fixture
def name() -> str:
    """The prefix of a test's indexes and template."""
    return f"flumeng-test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(real: RealElasticsearch, name: str) -> Iterator[Client]:
    with real.client() as client:
        yield client
        for index in client.indices.get(index=f"{name}*"):
            client.indices.delete(index=index)
        client.options(ignore_status=404).indices.delete_index_template(name=f"flumeng-{name}")


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    yield
    cluster.connect.cache_clear()


def events(first: int, count: int, **columns: list[Any]) -> pa.RecordBatch:
    numbers = range(first, first + count)
    plain = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"line %d" % n for n in numbers], pa.binary()),
            "ts": pa.array([1_795_000_000_000_000 + n for n in numbers], pa.timestamp("us", "UTC")),
            "host": pa.array(["192.0.2.1"] * count),
            "attrs": pa.array([[("k", "v")]] * count, MAP),
            "journal": pa.array(["web.n1.0.00000000"] * count, pa.string()),
            "seq": pa.array(numbers, pa.int64()),
            **{name: pa.array(values) for name, values in columns.items()},
        }
    )
    return identity.identify(plain, 0)


def stage(
    address: str, index: str = "logs", patience_seconds: float = 2.0, **options: Any
) -> IndexEvents:
    task = TaskRevision(index.partition(".")[0], "collect.0", 1)
    sink = ElasticsearchSink(Elasticsearch((address,), index, **options), task)
    return IndexEvents(sink._connection, sink._bulk_body, sink._template, patience_seconds)


def run(work: IndexEvents, *batches: pa.RecordBatch, refuse: Refuse | None = None) -> int:
    (row,) = work(iter(batches), refuse or refuse_nothing)
    return int(row["events"][0].as_py())


def refuse_nothing(events: pa.RecordBatch, reasons: Sequence[str]) -> None:
    raise RefusedError(f"{identity.name_of(events)}: {reasons[0]}")


class Letters:
    def __init__(self) -> None:
        self.found: dict[int, str] = {}

    def __call__(self, events: pa.RecordBatch, reasons: Sequence[str]) -> None:
        self.found |= dict(zip(events[identity.SEQ].to_pylist(), reasons, strict=True))


def ids(client: Client, name: str) -> list[str]:
    """The ids of all documents, sorted."""
    index = f"{name}*"
    client.indices.refresh(index=index)
    found: list[str] = []
    after = None
    while True:
        page = client.search(
            index=index, size=5_000, sort=["seq"], search_after=after, source=False
        )["hits"]["hits"]
        if not page:
            return sorted(found)
        found += [hit["_id"] for hit in page]
        after = page[-1]["sort"]


def wanted(count: int) -> list[str]:
    return sorted(f"web.n1.0.00000000-{seq}" for seq in range(count))


@pytest.mark.long
def test_events_are_documents_once_also_after_a_replay(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    work = stage(real.address, f"{name}.%Y.%m", template=True)
    body = pa.array([b'caf\xe9 "x"\n', None, b"plain"], pa.binary())
    special = events(0, 3).set_column(0, "body", body)
    for _ in range(2):
        assert run(work, special, events(3, 2_000)) == 2_003
    assert ids(client, name) == wanted(2_003)
    found = client.get(index=f"{name}.2026.11", id="web.n1.0.00000000-0")["_source"]
    assert found == {
        "body": 'caf\ufffd "x"\n',
        "body_base64": "Y2Fm6SAieCIK",
        "ts": "2026-11-18T11:06:40.000000Z",
        "host": "192.0.2.1",
        "attrs": {"k": "v"},
        "journal": "web.n1.0.00000000",
        "seq": 0,
    }
    mapping = client.indices.get_mapping(index=f"{name}.2026.11")[f"{name}.2026.11"]["mappings"]
    assert mapping["properties"]["attrs"]["type"] == "flattened"
    assert mapping["properties"]["ts"] == {"type": "date"}


def test_create_keeps_existing_documents_and_counts_them_as_written(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    assert run(stage(real.address, f"{name}.%Y.%m", op="create"), events(0, 3)) == 3
    changed = events(0, 5).set_column(0, "body", pa.array([b"other"] * 5, pa.binary()))
    assert run(stage(real.address, f"{name}.%Y.%m", op="create"), changed) == 5
    assert ids(client, name) == wanted(5)
    found = client.get(index=f"{name}.2026.11", id="web.n1.0.00000000-0")["_source"]
    assert found["body"] == "line 0"


def test_cluster_assigns_ids_without_an_id_option(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    plain = identity.strip(events(0, 3))
    assert run(stage(real.address, f"{name}.%Y.%m", id="none"), plain) == 3
    assert run(stage(real.address, f"{name}.%Y.%m", id="none"), plain) == 3
    assert len(set(ids(client, name))) == 6


def test_documents_that_the_mapping_refuses_become_dead_letters(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    client.indices.create(index=name, mappings={"properties": {"n": {"type": "integer"}}})
    values = ["1", "two", "3", "1e99", None]
    letters = Letters()
    assert run(stage(real.address, name), events(0, 5, n=values), refuse=letters) == 3
    assert sorted(letters.found) == [1, 3]
    assert letters.found[1].startswith("document_parsing_exception: ")
    assert 'For input string: "two"' in letters.found[1]
    assert ids(client, name) == [f"web.n1.0.00000000-{seq}" for seq in (0, 2, 4)]
    with pytest.raises(RefusedError, match=r"event web\.n1\.0\.00000000-1: document_parsing"):
        run(stage(real.address, name), events(0, 5, n=values))


def test_errors_of_the_index_are_retried(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    """An operator can mend each of them, so no event becomes a dead letter."""
    for index in (f"{name}-1", f"{name}-2"):
        client.indices.create(index=index, aliases={f"{name}-alias": {}})
    client.indices.create(index=f"{name}-pipe", settings={"index.default_pipeline": "missing"})
    client.indices.create(index=f"{name}-closed")
    client.indices.close(index=f"{name}-closed")
    for index, options, why in (
        ("alias", {}, r"no write index is defined for alias"),
        ("pipe", {}, r"pipeline with id \[missing\] does not exist"),
        ("closed", {}, r"index_closed_exception"),
        ("other", {"pipeline": "gone"}, r"pipeline with id \[gone\] does not exist"),
    ):
        with pytest.raises(UnavailableError, match=why):
            run(stage(real.address, f"{name}-{index}", 2.0, **options), events(0, 3))
    client.indices.put_alias(index=f"{name}-1", name=f"{name}-alias", is_write_index=True)
    assert run(stage(real.address, f"{name}-alias"), events(0, 3)) == 3
    client.indices.open(index=f"{name}-closed")
    client.indices.delete(index=f"{name}-closed")


def test_keys_of_maps_are_escaped_for_the_cluster(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    """Without the template a key `a` and a key `a.b` do not go together, blank or not."""
    names = ["", ".", ".a", "a.", "a..b", " ", "\t.x", "\u2003", "k"]
    beside = [[(key, "x"), ("_", "y")] for key in names]
    alone = [[(key, "x")] for key in ("", "a..b", "k. ")]
    for entries, template in ((alone, False), (beside, True)):
        index = f"{name}-{template}".lower()
        attrs = pa.array(entries, MAP)
        batch = events(0, len(entries)).set_column(3, "attrs", attrs)
        assert run(stage(real.address, index, template=template), batch) == len(entries)
    found = client.get(index=f"{name}-true", id="web.n1.0.00000000-4")["_source"]
    assert found["attrs"] == {"a._.b": "x", "_": "y"}
    found = client.get(index=f"{name}-true", id="web.n1.0.00000000-0")["_source"]
    assert found["attrs"] == {"__": "x", "_": "y"}


@pytest.mark.parametrize("column", sorted(RESERVED))
def test_columns_reserved_by_the_cluster_are_refused(
    real: RealElasticsearch, client: Client, name: str, column: str
) -> None:
    del client
    with pytest.raises(UserError, match=f"{column}: reserved by Elasticsearch"):
        BulkBody(Elasticsearch((real.address,), name)).check(events(0, 1, **{column: ["x"]}).schema)


def test_index_names_from_columns_are_legal(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    values = ["_x", "-x", ".", "..", "", "+x", "__", "ok"]
    wanted = ["x", "x", "none", "none", "none", "x", "none", "ok"]
    long = ["a" * 200] * len(values)
    batch = events(0, len(values), app=values, b=long, c=long)
    for pattern in (f"{{app}}-{name}", f"{{app}}-{{b}}-{{c}}-{name}"):
        assert run(stage(real.address, pattern), batch) == len(values)
    made = set(client.indices.get(index=f"*-{name}"))
    client.indices.delete(index=sorted(made))
    assert {one for one in made if len(one) < 100} == {f"{value}-{name}" for value in set(wanted)}
    assert all(len(one) <= 255 for one in made)
    assert run(stage(real.address, "{app}"), events(0, len(values), app=values)) == len(values)
    assert set(client.indices.get(index="x,none,ok")) == {"x", "none", "ok"}
    client.indices.delete(index="x,none,ok")


def test_alias_moved_by_rollover_is_refused_for_exactly_once(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    alias = f"{name}-logs"
    client.indices.create(index=f"{name}-000001", aliases={alias: {"is_write_index": True}})
    for index in (alias, f"{name}-{{host}}"):
        once = replace(stage(real.address, index), steady_index=index)
        with pytest.raises(UserError, match=f"the alias {alias} rolls over"):
            run(once, events(0, 3))
    assert run(stage(real.address, alias), events(0, 3)) == 3
    client.indices.rollover(alias=alias)
    run(stage(real.address, alias), events(0, 3))
    assert len(ids(client, name)) == 6, "the reason for the refusal"
    client.indices.create(index=f"{name}-plain", aliases={f"{name}-one": {}})
    once = replace(stage(real.address, f"{name}-one"), steady_index=f"{name}-one")
    assert run(once, events(0, 3)) == 3


def test_full_write_queue_is_waited_for_and_nothing_is_lost(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    """Six splits at a time, and eight shards, before one thread with a queue of two."""
    need_own(real)
    client.indices.create(index=name, settings={"number_of_shards": 8})
    work = stage(real.address, name, patience_seconds=30.0)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: run(work, events(100 * n, 100)), range(6)))
    assert found == [100] * 6
    assert ids(client, name) == wanted(600)
    pools = client.nodes.stats(metric="thread_pool")["nodes"].values()
    assert sum(node["thread_pool"]["write"]["rejected"] for node in pools) > 0, (
        "the queue was never full: nothing was tested"
    )


def test_read_only_index_is_waited_for_and_reported(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    client.indices.create(index=name)
    for setting in ("index.blocks.write", "index.blocks.read_only_allow_delete"):
        client.indices.put_settings(index=name, settings={setting: True})
        with pytest.raises(UnavailableError, match=r"cluster_block_exception: .*blocked"):
            run(stage(real.address, name, 0.5), events(0, 3))
        client.indices.put_settings(index=name, settings={setting: None})
    assert run(stage(real.address, name), events(0, 3)) == 3


def test_index_that_may_not_be_created_is_waited_for(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    need_own(real)
    client.cluster.put_settings(persistent={"action.auto_create_index": "other-*"})
    try:
        with pytest.raises(UnavailableError, match="index_not_found_exception"):
            run(stage(real.address, name, 0.5), events(0, 3))
    finally:
        client.cluster.put_settings(persistent={"action.auto_create_index": None})
    assert run(stage(real.address, name), events(0, 3)) == 3


def test_server_that_is_away_or_does_not_speak_http_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="elasticsearch: "):
        run(stage("http://127.0.0.1:1", patience_seconds=0.2), events(0, 1))


@pytest.mark.long
def test_lost_answers_and_a_restart_lose_no_document(
    real: RealElasticsearch, client: Client, name: str
) -> None:
    need_own(real)
    proxy = LossyProxy(real.port)
    proxy.losing = 0.3
    work = stage(proxy.address, name, 240.0, request_bytes=512 * 1024)
    begun, killed = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(8):
            yield events(n * 400, 400, filler=["x" * 10_000] * 400)
            if n == 2:
                begun.set()
                killed.wait(60)

    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(lambda: list(work(batches(), refuse_nothing)))
        assert begun.wait(60)
        real.kill()
        killed.set()
        real.start()
        (row,) = counted.result(timeout=300)
    assert row["events"][0].as_py() == 3_200
    assert proxy.lost > 3, "no answer was lost: nothing was tested"
    assert ids(client, name) == wanted(3_200)
    proxy.close()


def test_tls_server_is_trusted_by_its_ca_or_fingerprint_only(
    real: RealElasticsearch, client: Client, name: str, tmp_path: Path
) -> None:
    need_own(real)
    ours, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "strangers")
    certificate, key = ours.issue("search")
    front = TlsFront(real.port, certificate, key)
    https = f"https://127.0.0.1:{front.port}"
    fingerprint = fingerprint_of(certificate)
    assert run(stage(https, name, ca=str(ours.ca)), events(0, 2)) == 2
    assert run(stage(https, name, fingerprint=fingerprint), events(2, 2)) == 2
    cases: list[dict[str, Any]]
    cases = [{"ca": str(stranger.ca)}, {}, {"fingerprint": fingerprint_of(stranger.ca)}]
    for options in cases:
        with pytest.raises(UserError, match="is not trusted, see the options ca and fingerprint"):
            run(stage(https, name, **options), events(4, 2))
    with pytest.raises(UnavailableError):
        run(stage(https.replace("https", "http"), name), events(4, 2))
    assert ids(client, name) == wanted(4)
    front.close()


def fingerprint_of(certificate: Path) -> str:
    content = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("--most-bytes", "100000"), {}),
        (("--busy-every", "3"), {}),
        ((), {"compression": "gzip"}),
        ((), {"request_bytes": 65536}),
    ],
)
def test_every_event_reaches_a_small_or_busy_server_once(
    arguments: tuple[str, ...], options: dict[str, Any]
) -> None:
    server = BulkServer(*arguments)
    try:
        batches = [events(n * 5_000, 5_000) for n in range(10)]
        assert run(stage(server.address, **options), *batches) == 50_000
        assert server.taken()["events"] == 50_000
    finally:
        server.stop()


def test_too_large_event_is_a_dead_letter() -> None:
    server = BulkServer("--most-bytes", "100000")
    try:
        letters = Letters()
        filler = ["x" * 200_000 if n == 7 else "" for n in range(100)]
        assert run(stage(server.address), events(0, 100, filler=filler), refuse=letters) == 99
        assert list(letters.found) == [7]
        assert letters.found[7].startswith("elasticsearch: status 413")
        assert server.taken()["events"] == 99
    finally:
        server.stop()
