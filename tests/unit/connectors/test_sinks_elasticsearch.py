"""Bulk requests byte for byte, the handling of answers, and how requests grow and shrink."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from flumeng.config import parse_flow
from flumeng.connectors.api.backoff import Backoff
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.elasticsearch import template
from flumeng.connectors.elasticsearch.bulk import RETRY_SECONDS, Request, send
from flumeng.connectors.elasticsearch.bulk_body import (
    NAME_CHARACTERS,
    VALUE_CHARACTERS,
    BulkBody,
    legal,
)
from flumeng.connectors.elasticsearch.bulk_response import Verdict, interpret
from flumeng.connectors.elasticsearch.cluster import (
    FIRST_BYTES,
    LEAST_BYTES,
    Connection,
    OverloadedError,
    RequestSize,
    TooLargeError,
    moving,
)
from flumeng.connectors.elasticsearch.options import Elasticsearch
from flumeng.connectors.elasticsearch.sink import ElasticsearchSink
from flumeng.events import identity
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.options.problems import SpecError
from flumeng.platform.scrubbing import Secret

HOSTS = ("http://127.0.0.1:9200",)
TASK = TaskRevision("web", "collect.0", 3)
DAY = 86_400_000_000


def events(*bodies: str, days: Sequence[int | None] = (), **columns: list[Any]) -> pa.RecordBatch:
    count = len(bodies)
    times = [None if day is None else day * DAY for day in days or [0] * count]
    plain = {
        "body": pa.array([body.encode() for body in bodies], pa.binary()),
        "ts": pa.array(times, pa.timestamp("us", "UTC")),
        "journal": pa.array(["web.n1.0.a"] * count, pa.string()),
        "seq": pa.array(range(7, 7 + count), pa.int64()),
        **{name: pa.array(values) for name, values in columns.items()},
    }
    return identity.identify(pa.RecordBatch.from_pydict(plain), 0)


def lines(options: Elasticsearch, batch: pa.RecordBatch) -> list[str]:
    bodies = BulkBody(options)
    bodies.check(batch.schema)
    return [two.decode() for two in bodies.lines(batch).to_pylist()]


def actions(options: Elasticsearch, batch: pa.RecordBatch) -> list[Any]:
    return [json.loads(two.splitlines()[0]) for two in lines(options, batch)]


def test_an_event_is_two_lines_byte_for_byte() -> None:
    assert lines(Elasticsearch(HOSTS, "logs-%Y.%m.%d"), events('a "b"', "c", days=[0, 1])) == [
        '{"index":{"_index":"logs-1970.01.01","_id":"web.n1.0.a-7"}}\n'
        '{"body":"a \\"b\\"","ts":"1970-01-01T00:00:00.000000Z","journal":"web.n1.0.a","seq":7}\n',
        '{"index":{"_index":"logs-1970.01.02","_id":"web.n1.0.a-8"}}\n'
        '{"body":"c","ts":"1970-01-02T00:00:00.000000Z","journal":"web.n1.0.a","seq":8}\n',
    ]


def test_document_id_is_used_when_select_drops_its_columns() -> None:
    batch = events("a").select(["body", *identity.COLUMNS])
    assert lines(Elasticsearch(HOSTS, "logs"), batch) == [
        '{"index":{"_index":"logs","_id":"web.n1.0.a-7"}}\n{"body":"a"}\n'
    ]
    without = batch.select(["body"])
    assert lines(Elasticsearch(HOSTS, "logs", id="none", op="create"), without) == [
        '{"create":{"_index":"logs"}}\n{"body":"a"}\n'
    ]


def test_data_stream_documents_are_created_with_a_timestamp() -> None:
    (two,) = lines(Elasticsearch(HOSTS, "logs", data_stream=True), events("a"))
    assert two.startswith('{"create":{"_index":"logs","_id":"web.n1.0.a-7"}}\n')
    assert '"@timestamp":"1970-01-01T00:00:00.000000Z"' in two
    assert '"ts"' not in two


def test_routing_is_a_column_and_left_out_where_it_is_null() -> None:
    batch = events("a", "b", "c", app=['x"y', None, "z"])
    found = [
        one["index"].get("routing")
        for one in actions(Elasticsearch(HOSTS, "l", routing="app"), batch)
    ]
    assert found == ['x"y', None, "z"]


def test_an_index_has_the_time_and_the_columns_of_its_event() -> None:
    batch = events(
        "a",
        "b",
        "c",
        "d",
        days=[0, None, 20_000, 0],
        app=["Web", "a/b", None, ""],
        n=[1, 2, 3, None],
    )
    options = Elasticsearch(HOSTS, "x-%Y-%m-%d_%H%M.{app}-{n}")
    assert [one["index"]["_index"] for one in actions(options, batch)] == [
        "x-1970-01-01_0000.web-1",
        "x-1970-01-01_0000.a-b-2",
        "x-2024-10-04_0000.none-3",
        "x-1970-01-01_0000.none-none",
    ]


def test_times_beyond_the_calendar_go_to_the_nearest_index() -> None:
    batch = events("a", "b", days=[-(10**8), 10**8])
    found = actions(Elasticsearch(HOSTS, "x-%Y"), batch)
    assert [one["index"]["_index"] for one in found] == ["x-0001", "x-9999"]


def test_index_name_is_legal_for_any_value() -> None:
    assert legal('A b"c\\/*?<>|,#:\n') == "a-b-c-"
    assert legal("gr\u00fcn") == "gr-n"
    assert len(legal("x" * 10_000)) == VALUE_CHARACTERS
    batch = events(*"abcde", app=["_x", "-+y", "..", None, ".z"])
    found = actions(Elasticsearch(HOSTS, "{app}-%Y"), batch)
    names = [one["index"]["_index"] for one in found]
    assert names == ["x-1970", "y-1970", "none-1970", "none-1970", ".z-1970"]
    long: dict[str, Any] = {name: ["x" * 200] for name in "pqr"}
    (found,) = actions(Elasticsearch(HOSTS, "{p}.{q}.{r}-%Y.%m.%d"), events("a", **long))
    assert len(found["index"]["_index"]) <= NAME_CHARACTERS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"index": "x-%Y", "id": "none"},
            "index needs the column ts as a time, which the filters do not",
        ),
        ({"index": "x-{app}"}, "index needs the column app, which is missing"),
        ({"index": "x-{body}"}, "index: the column body is binary"),
        ({"index": "x", "routing": "app"}, "routing needs the column app"),
        ({"index": "x", "data_stream": True}, "a data stream needs the column ts"),
    ],
)
def test_missing_columns_are_named(options: dict[str, Any], message: str) -> None:
    batch = events("a").select(["body"])
    with pytest.raises(UserError, match=message):
        BulkBody(Elasticsearch(HOSTS, **options)).check(batch.schema)


def item(status: int, kind: str = "", why: str | None = None, op: str = "index") -> dict[str, Any]:
    return {
        op: {"status": status, "error": {"type": kind, "reason": why}}
        if kind
        else {"status": status}
    }


def answer(*items: dict[str, Any]) -> bytes:
    return json.dumps({"errors": True, "items": items}).encode()


def test_bulk_answer_items_are_accepted_retried_or_refused() -> None:
    parsing = item(400, "document_parsing_exception", "failed to parse [n]")
    parsing["index"]["error"]["caused_by"] = {"type": "x", "reason": "not a number"}
    found = answer(
        item(201),
        item(429, "es_rejected_execution_exception", "queue full"),
        item(503, "unavailable_shards_exception", "no primary"),
        parsing,
        item(409, "version_conflict_engine_exception", op="create"),
        item(403, "cluster_block_exception", "index read-only"),
        item(404, "index_not_found_exception", "no such index"),
        item(413),
    )
    assert interpret(found, 8) == Verdict(
        again=[1, 2, 5, 6],
        trouble="es_rejected_execution_exception: queue full",
        overloaded=True,
        refused=[
            (3, "document_parsing_exception: failed to parse [n]: not a number"),
            (7, "status 413"),
        ],
    )
    assert interpret(b'{"errors":false,"items":[]}', 5) == Verdict()


@pytest.mark.parametrize(
    ("why", "waits"),
    [
        ("no write index is defined for alias [a]. The write index may be ...", True),
        ("pipeline with id [p] does not exist", True),
        ("only write ops with an op_type of create are allowed in data streams", True),
        ("failed to parse [x]: 'no write index is defined for alias [a]'", False),
        ("Limit of total fields [1000] has been exceeded", False),
    ],
)
def test_argument_errors_for_an_operator_are_waited_for(why: str, waits: bool) -> None:
    """An event that quotes such an error in its own text does not hold up the flow."""
    found = interpret(answer(item(400, "illegal_argument_exception", why)), 1)
    assert (found.again, len(found.refused)) == (([0], 0) if waits else ([], 1))
    quoted = answer(item(400, "document_parsing_exception", why))
    assert interpret(quoted, 1).again == []


def test_blank_parts_of_keys_are_underscores() -> None:
    kind = pa.map_(pa.string(), pa.string())
    maps = [[("", "1"), ("_", "2")], None, [("a..b", "1"), (".", "2"), (" ", "3"), ("ok", "4")]]
    nested = [{"m": [(".a", "1")]}, None, {"m": None}]
    batch = events("a", "b", "c")
    batch = batch.append_column("attrs", pa.array(maps, kind))
    batch = batch.append_column("s", pa.array(nested, pa.struct([("m", kind)])))
    documents = [json.loads(two.splitlines()[1]) for two in lines(Elasticsearch(HOSTS, "x"), batch)]
    assert [one.get("attrs") for one in documents] == [
        {"__": "1", "_": "2"},
        None,
        {"a._.b": "1", "_._": "2", "_": "3", "ok": "4"},
    ]
    assert [one.get("s") for one in documents] == [{"m": {"_.a": "1"}}, None, {}]
    assert documents == [
        json.loads(lines(Elasticsearch(HOSTS, "x"), batch.slice(n, 1))[0].splitlines()[1])
        for n in range(3)
    ], "wherever a batch is cut"


@pytest.mark.parametrize(
    ("index", "aliases", "expected"),
    [
        ("logs", {"logs-1": {"logs": {"is_write_index": True}}}, "logs"),
        ("logs", {"logs-1": {"logs": {}}, "logs-2": {"logs": {}}}, "logs"),
        ("logs", {"logs-1": {"logs": {}}}, None),
        ("logs-{app}", {"x-1": {"logs-a": {"is_write_index": True}}}, "logs-a"),
        ("logs-{app}-%Y", {"x-1": {"logs-a": {"is_write_index": True}}}, None),
    ],
)
def test_moving_aliases_are_found(
    index: str, aliases: dict[str, Any], expected: str | None
) -> None:
    content = json.dumps({name: {"aliases": one} for name, one in aliases.items()}).encode()
    assert moving(content, index) == expected


@pytest.mark.parametrize("content", [b"", b"<html>", b"{}", b'{"errors":true}', answer(item(201))])
def test_invalid_answer_raises(content: bytes) -> None:
    with pytest.raises(ValueError):
        interpret(content, 2)


Bulk = Callable[[list[str]], bytes]


class ScriptedCluster:
    """Answers each request with the items that ``bulk`` returns for its documents."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self.size = RequestSize(8 * 2**20)
        self.requests: list[list[str]] = []

    def bulk(self, body: bytes) -> bytes:
        self.requests.append([json.loads(line)["body"] for line in body.splitlines()[1::2]])
        return self._bulk(self.requests[-1])


def sent(cluster: Any, *bodies: str) -> list[tuple[list[str], list[str]]]:
    batch = events(*bodies)
    request = Request(batch, BulkBody(Elasticsearch(HOSTS, "logs")).lines(batch))
    clock = iter(range(10_000))
    backoff = Backoff(RETRY_SECONDS, None, lambda: float(next(clock)), lambda _: None)
    backoff.progressed()
    found = send(request, cluster, backoff)
    return [([body.decode() for body in e["body"].to_pylist()], list(r)) for e, r in found]


FINE = b'{"errors":false}'


def test_only_untaken_documents_are_sent_again() -> None:
    replies = iter([answer(item(201), item(429, "full"), item(400, "bad", "why")), FINE])
    cluster = ScriptedCluster(lambda _: next(replies))
    assert sent(cluster, "a", "b", "c") == [(["c"], ["bad: why"])]
    assert cluster.requests == [["a", "b", "c"], ["b"]]
    assert cluster.size.bytes == FIRST_BYTES // 2


def test_request_whose_answer_was_lost_is_repeated() -> None:
    def lose(_: list[str]) -> bytes:
        if len(cluster.requests) < 3:
            raise UnavailableError("reset")
        return FINE

    cluster = ScriptedCluster(lose)
    assert sent(cluster, "a", "b") == []
    assert cluster.requests == [["a", "b"]] * 3


def test_retries_end_with_the_last_error() -> None:
    cluster = ScriptedCluster(
        lambda documents: answer(*[item(403, "cluster_block_exception", "ro")] * len(documents))
    )
    with pytest.raises(UnavailableError, match="elasticsearch: cluster_block_exception: ro"):
        sent(cluster, "a")
    assert 3 < len(cluster.requests) <= RETRY_SECONDS


def test_slow_server_is_waited_for_while_it_takes_something() -> None:
    """One event of each request, some of them a second apart."""
    cluster = ScriptedCluster(
        lambda documents: answer(item(201), *[item(429, "full")] * (len(documents) - 1))
    )
    many = [str(number) for number in range(3 * int(RETRY_SECONDS))]
    assert sent(cluster, *many) == []
    assert [documents[0] for documents in cluster.requests] == many


def test_too_large_request_is_halved_down_to_the_refused_event() -> None:
    def most_three(documents: list[str]) -> bytes:
        if len("".join(documents)) > 3:
            raise TooLargeError("status 413")
        return FINE

    cluster = ScriptedCluster(most_three)
    assert sent(cluster, "a", "b", "large", "c", "d") == [(["large"], ["status 413"])]
    taken = [d for documents in cluster.requests if len("".join(documents)) <= 3 for d in documents]
    assert sorted(taken) == ["a", "b", "c", "d"]


def test_requests_grow_on_success_and_shrink_on_failure_within_bounds() -> None:
    size = RequestSize(4 * 2**20)
    for _ in range(10):
        size.grow()
    assert size.bytes == 4 * 2**20
    for _ in range(20):
        size.shrink()
    assert size.bytes == LEAST_BYTES
    for _ in range(5):
        size.grow()
    assert LEAST_BYTES < size.bytes < 2 * LEAST_BYTES


def test_after_an_overload_the_next_attempt_is_in_smaller_requests() -> None:
    def overloaded(_: list[str]) -> bytes:
        if len(cluster.requests) <= 4:
            raise OverloadedError("429")
        return FINE

    cluster = ScriptedCluster(overloaded)
    bodies = ["x" * 10_000] * 50
    assert sent(cluster, *bodies) == []
    assert len(cluster.requests[0]) == 50
    assert max(len(documents) for documents in cluster.requests[4:]) < 20
    assert sum(len(documents) for documents in cluster.requests[4:]) == 50


@pytest.mark.parametrize("most_bytes", [1, 150, 1_000, 10**9])
def test_bulk_request_is_cut_in_order(most_bytes: int) -> None:
    batch = events(*[str(n) for n in range(20)])
    whole = Request(batch, BulkBody(Elasticsearch(HOSTS, "logs")).lines(batch))
    parts = list(whole.cut(most_bytes))
    assert b"".join(part.body for part in parts) == whole.body
    assert [s.as_py() for part in parts for s in part.events["seq"]] == list(range(7, 27))


def flow(options: str) -> str:
    return (
        f"{{flow: web, sources: [syslog: {{listen: ':0'}}], sinks: [elasticsearch: {{{options}}}]}}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("hosts: [search:9200], index: x", "expected a URL"),
        ("hosts: ['http://u:p@h'], index: x", "credentials"),
        ("hosts: ['http://h'], index: Logs", "expected only a-z"),
        ("hosts: ['http://h'], index: 'x-%S'", "expected only a-z"),
        ("hosts: ['http://h'], index: '{app}'", "first"),
        ("hosts: ['http://h'], index: _x", "first"),
        ("hosts: ['http://h'], index: x, password: hunter2", "not the secret itself"),
        ("hosts: ['http://h'], index: x, username: u", "expected the password too"),
        ("hosts: ['http://h'], index: x, ca: /ca.pem", "expected https in http://h"),
        ("hosts: ['https://h'], index: x, key: /key.pem", "certificate and key together"),
        ("hosts: ['https://h'], index: x, fingerprint: ab", "SHA-256"),
    ],
)
def test_contradictory_options_are_refused(options: str, message: str) -> None:
    with pytest.raises(SpecError) as found:
        parse_flow(flow(options))
    assert message in str(found.value)


def test_policy_of_a_node_gets_each_host_with_its_port() -> None:
    hosts = ("https://h", "http://[::1]:9200/es/")
    needs = list(Elasticsearch(hosts, "x", ca="/ca.pem").needs())
    assert needs == [
        ("output", "https://h:443"),
        ("output", "http://[::1]:9200/es"),
        ("path", "/ca.pem"),
    ]


def test_exactly_once_needs_the_events_own_id() -> None:
    assert Elasticsearch(HOSTS, "x").exactly_once == "by event"
    assert Elasticsearch(HOSTS, "x", id="none").exactly_once is None
    assert Elasticsearch(HOSTS, "x", data_stream=True).exactly_once is None


def test_secret_is_read_at_the_start_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Elasticsearch(HOSTS, "x", username="u", password="${secret:search}")
    with pytest.raises(UserError, match="there is no secret search"):
        ElasticsearchSink(options, TASK)
    monkeypatch.setenv("FLUMENG_SECRET_SEARCH", "hunter22")
    connection = ElasticsearchSink(options, TASK)._connection
    assert connection.headers() == {"authorization": "Basic dTpodW50ZXIyMg=="}
    assert "hunter22" not in repr(connection)
    assert pickle.loads(pickle.dumps(connection)) == connection
    key = Connection(HOSTS, 1.0, 1, api_key=Secret("abcdef"))
    assert key.headers() == {"authorization": "ApiKey abcdef"}


def test_a_template_fits_the_indexes_of_its_flow() -> None:
    found = template.of(Elasticsearch(HOSTS, "logs-%Y.%m-{app}"), "web")
    content = json.loads(found.contents[0])
    assert (found.name, content["index_patterns"]) == ("flumeng-web", ["logs-*.*-*"])
    assert content["template"]["mappings"]["properties"]["ts"] == {"type": "date"}
    stream = json.loads(
        template.of(Elasticsearch(HOSTS, "logs", data_stream=True), "web").contents[0]
    )
    assert stream["data_stream"] == {}
    assert "@timestamp" in stream["template"]["mappings"]["properties"]
