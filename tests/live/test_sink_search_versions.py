"""The sink ``elasticsearch`` against servers of other versions than the one of the long tests.

``FLUMENG_TEST_ES_VERSIONS`` lists them: ``9.2.0``, ``opensearch-2.19.3``.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flumeng.connectors.elasticsearch.cluster import Connection, connect
from flumeng.connectors.elasticsearch.template import Template
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.own_server import need_own
from tests.live.test_sink_elasticsearch import Letters, events, run, stage, wanted
from tests.testkit.servers.elasticsearch import RealElasticsearch
from tests.testkit.servers.opensearch import RealOpenSearch

VERSIONS = os.environ.get("FLUMENG_TEST_ES_VERSIONS", "9.2.0").split()


@pytest.fixture(scope="module", params=VERSIONS)
def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealElasticsearch]:
    product, _, version = request.param.rpartition("-")
    kind = RealOpenSearch if product == "opensearch" else RealElasticsearch
    server = kind(tmp_path_factory.mktemp("search"), version=version)
    need_own(server)
    try:
        server.start()
    except (UserError, UnavailableError) as error:
        pytest.skip(f"no {request.param}: {error}")
    yield server
    server.stop()


def ask(real: RealElasticsearch, method: str, path: str, body: object = None) -> Any:
    """Query without a client library: each of them refuses servers of other kinds."""
    request = urllib.request.Request(
        f"{real.address}/{path}",
        None if body is None else json.dumps(body).encode(),
        {"content-type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def found(real: RealElasticsearch, index: str) -> dict[str, Any]:
    """The documents by id."""
    hits = ask(real, "POST", f"{index}/_search?size=1000&allow_partial_search_results=false", {})
    return {hit["_id"]: hit["_source"] for hit in hits["hits"]["hits"]}


@pytest.mark.long
def test_events_are_documents_once_with_the_types_of_the_template(real: RealElasticsearch) -> None:
    work = stage(real.address, "logs.%Y.%m", template=True, compression="gzip")
    for _ in range(2):
        assert run(work, events(0, 500)) == 500
    ask(real, "POST", "logs.2026.11/_refresh")
    assert sorted(found(real, "logs.2026.11")) == wanted(500)
    answer = ask(real, "GET", "logs.2026.11/_mapping")
    types = answer["logs.2026.11"]["mappings"]["properties"]
    assert (types["ts"]["type"], types["host"]["type"]) == ("date", "keyword")


def test_create_keeps_existing_documents(real: RealElasticsearch) -> None:
    """Each is answered with 409."""
    assert run(stage(real.address, "kept", op="create"), events(0, 3)) == 3
    changed = events(0, 5).set_column(0, "body", pa.array([b"other"] * 5, pa.binary()))
    assert run(stage(real.address, "kept", op="create"), changed) == 5
    ask(real, "POST", "kept/_refresh")
    documents = found(real, "kept")
    assert sorted(documents) == wanted(5)
    assert documents["web.n1.0.00000000-0"]["body"] == "line 0"


def test_documents_that_the_mapping_refuses_become_dead_letters(real: RealElasticsearch) -> None:
    ask(real, "PUT", "typed", {"mappings": {"properties": {"n": {"type": "integer"}}}})
    letters = Letters()
    numbers = ["1", "two", "3", "1e99", None]
    assert run(stage(real.address, "typed"), events(0, 5, n=numbers), refuse=letters) == 3
    assert sorted(letters.found) == [1, 3]
    assert "parsing_exception: " in letters.found[1]
    assert 'For input string: "two"' in letters.found[1]


def test_refused_template_is_reported_at_once(real: RealElasticsearch) -> None:
    cluster = connect(Connection((real.address,), 30.0, 2**20))
    unknown = b'{"index_patterns": ["x-*"], "unknown": 1}'
    with pytest.raises(UserError, match="status 400"):
        cluster.install(Template("flumeng-unknown", (unknown,)))
