"""Cuts of requests, and the options of the sink."""

from __future__ import annotations

import itertools
import json
import random
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.config import parse_flow
from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.http.receiver import Endpoint, reach
from flumeng.connectors.http.sink import SendSplit, requests
from flumeng.connectors.http.sink_options import Http, check_header
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import SpecError
from flumeng.platform.options.texts import check_url

FLOW = """
flow: web
sources: [{{syslog: {{listen: "127.0.0.1:5514"}}}}]
delivery: exactly-once
sinks: [{{http: {{url: "https://hooks.example/in", {}}}}}]
"""


def events(bodies: list[bytes], split: int = 0) -> pa.RecordBatch:
    count = len(bodies)
    columns = {
        "body": pa.array(bodies, pa.binary()),
        "__journal": pa.array(["j"] * count),
        "__seq": pa.array(range(count), pa.int64()),
        "__split": pa.array([split] * count, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_requests_are_full_for_any_cut_of_the_events() -> None:
    chance = random.Random(7)
    whole = events([b"x" * chance.randrange(60) for _ in range(500)] + [b"y" * 900, b"z"])
    expected = list(requests(iter([whole]), 400))
    sizes = [sum(len(text) + 1 for text in request.texts) for request in expected]
    assert max(size for size, r in zip(sizes, expected, strict=True) if len(r.texts) > 1) <= 400
    assert sum(size < 300 for size in sizes) <= 3
    for _ in range(20):
        cuts = sorted({0, len(whole), *(chance.randrange(len(whole)) for _ in range(9))})
        parts = [whole.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
        found = list(requests(iter(parts), 400))
        assert [(r.number, r.texts) for r in found] == [(r.number, r.texts) for r in expected]
    for request in expected:
        seqs = [seq for part in request.events for seq in part["__seq"].to_pylist()]
        bodies = [json.loads(text)["body"] for text in request.texts]
        assert bodies == [whole["body"][seq].as_py().decode() for seq in seqs]


def test_key_of_a_request_is_that_of_a_repeat_and_of_no_other_request() -> None:
    endpoint = Endpoint("https://hooks.example/in", "POST", (), None, 1.0)

    def keys(number: int, split: int, sink: str = "http") -> list[str]:
        stage = SendSplit(Http(endpoint.url), endpoint, BatchId("series", number), sink)
        return [stage._key(request) for request in requests(iter([events([b"a", b"b"], split)]), 9)]

    places = [(1, 0, "http"), (1, 1, "http"), (2, 0, "http"), (1, 0, "other")]
    made = [key for place in places for key in keys(*place)]
    assert len(made) == len(set(made)) == 2 * len(places)
    assert [key for place in places for key in keys(*place)] == made


def test_exactly_once_needs_a_receiver_that_honours_the_key() -> None:
    with pytest.raises(SpecError, match="http with these options cannot recognise"):
        parse_flow(FLOW.format("format: json"))
    spec = parse_flow(FLOW.format("idempotent: true"))
    assert spec.sinks[0].options.exactly_once == "by batch"


@pytest.mark.parametrize(
    "headers", ['{Authorization: "Bearer x"}', '{X-A: "a\\nb"}', '{host: "b"}', '{"a b": "c"}']
)
def test_invalid_headers_are_refused(headers: str) -> None:
    with pytest.raises(SpecError, match="headers"):
        parse_flow(FLOW.format(f"idempotent: true, headers: {headers}"))
    check_header("X-Source")


@pytest.mark.parametrize(
    "url", ["https://", "ftp://h/", "https://a:b@h/", "https://h:0/", "https://h/#x", "https://h/ä"]
)
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        check_url(url)


def test_needed_permissions_are_the_url_and_the_authority_file() -> None:
    assert list(Http("https://HOOKS.example/in?x=1", ca="/ca.pem").needs()) == [
        ("output", "https://hooks.example:443/in"),
        ("path", "/ca.pem"),
    ]


def test_missing_authority_file_is_wrong_input_and_no_silent_server(tmp_path: Path) -> None:
    """urllib3 reads the file when it connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}/in"
        endpoint = Endpoint(url, "POST", (), str(tmp_path / "ca.pem"), 5.0)
        with pytest.raises(UserError, match=rf"cannot read {tmp_path}/ca.pem: No such file"):
            reach(endpoint)
        (tmp_path / "ca.pem").write_text("no certificate")
        with pytest.raises(UserError, match=rf"cannot read {tmp_path}/ca.pem: .*no certificate"):
            reach(endpoint)
