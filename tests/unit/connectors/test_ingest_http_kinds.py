"""Events in HTTP bodies of each content type, and answers to well-known clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.connectors.http import body as http_body
from flumeng.connectors.http.body import MOST_ENTRIES, RefusedError
from flumeng.connectors.network.senders import SenderAuth
from tests.unit.connectors.http_sending import Client, Journal, run, serving

JSON_TYPES = [
    "application/json",
    "text/json; charset=utf-8",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/reports+json",
    "Application/JSON",
]
LINES_OF_JSON = ["application/x-ndjson", "application/x-jsonlines", "application/vnd.serilog.clef"]
A, B = b'{"a":1}', b'{"a":"}{\\"", "b": [1, {}]}'


def events(body: bytes, content_type: str) -> list[bytes]:
    found: list[bytes] = []
    for data, bounds, *_ in http_body.messages(body, content_type):
        if bounds is None:
            found += [line for line in data.split(b"\n") if line]
        else:
            found += [data[start:end] for start, end in zip(*bounds, strict=True)]
    return found


@pytest.mark.parametrize("kind", JSON_TYPES)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[" + A + b",\n" + B + b"]", [A, B]),
        (A + B, [A, B]),
        (A + b"\n" + B + b"\n", [A, B]),
        (A + b"\r\n\r\n " + B, [A, B]),
        (b"\xef\xbb\xbf" + A, [A]),
        (b'{\n  "id": "1"\n}\n', [b'{\n  "id": "1"\n}']),
        (b"[]", []),
        (b" 12 ", [b"12"]),
        (b"[1][2]", [b"[1]", b"[2]"]),
    ],
)
def test_json_body_is_cut_into_its_elements(kind: str, body: bytes, expected: list[bytes]) -> None:
    assert events(body, kind) == expected


@pytest.mark.parametrize("kind", LINES_OF_JSON)
def test_lines_of_json_may_be_written_over_several_lines(kind: str) -> None:
    assert events(A + b"\n" + B, kind) == [A, B]
    assert events(b'{\n"a": 1}' + A, kind) == [b'{\n"a": 1}', A]


@pytest.mark.parametrize("kind", [*JSON_TYPES, *LINES_OF_JSON])
@pytest.mark.parametrize(
    "body", [A + b"\nnot json\n", A + b"," + B, A + b"{", b"x" + A, A + b"]" + B, b'{"a":}' + A]
)
def test_body_that_is_not_all_json_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(RefusedError, match="is not") as refused:
        events(body, kind)
    assert refused.value.status == 400


@given(st.lists(st.dictionaries(st.text(), st.text() | st.lists(st.integers())), min_size=2))
def test_concatenated_values_are_found_with_any_strings_in_them(
    values: list[dict[str, object]],
) -> None:
    texts = [json.dumps(value, ensure_ascii=False).encode("utf-8", "ignore") for value in values]
    for between in (b"", b"\n", b" \r\n"):
        assert events(between.join(texts), "application/json") == texts


def test_too_many_values_are_refused() -> None:
    with pytest.raises(RefusedError, match="more than 100000 entries") as refused:
        events(b"{}" * (MOST_ENTRIES + 1), "application/json")
    assert refused.value.status == 413


def test_json_sequence_is_cut_at_its_separators_or_refused() -> None:
    """RFC 7464."""
    kind = "application/json-seq"
    assert events(b"\x1e" + A + b"\n\x1e12\n\x1e" + B, kind) == [A, b"12", B]
    for bad in (A, b"\x1e" + A + b"\n\x1e{", b"\x1e" + A + B):
        with pytest.raises(RefusedError, match=r"is no|is not"):
            events(bad, kind)


def test_logplex_frames_are_cut_by_their_counts() -> None:
    first, second = b"<40>1 - host app web.1 - State\n", b"<40>1 - host app web.1 - 2 lines\nin one"
    body = b"".join(b"%d %s" % (len(text), text) for text in (first, second))
    assert events(body, "application/logplex-1") == [first[:-1], second]
    for bad in (body[:-1], body + b"x", b"text"):
        with pytest.raises(RefusedError, match="octet-counted"):
            events(bad, "application/logplex-1")


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("application/msgpack", "application/x-ndjson"),
        ("application/octet-stream", "text/plain"),
        ("application/vnd.apache.arrow.stream", "text/plain"),
        ("multipart/form-data; boundary=x", "application/json"),
        ("image/png", "text/plain"),
        ("application/gzip", "Content-Encoding"),
        ("application/x-protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"),
    ],
)
def test_binary_is_refused_with_advice(kind: str, advice: str) -> None:
    with pytest.raises(RefusedError, match=advice) as refused:
        http_body.require_text(kind)
    assert refused.value.status == 415


async def request(client: Client, line: str, body: bytes, *headers: str) -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers, "", ""]
    client.send("\r\n".join(lines).encode(), body)
    return (await client.reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0]


@pytest.mark.slow
def test_clients_of_splunk_get_answers_they_expect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They set no fitting content type, and a scheme of their own."""
    monkeypatch.setenv("FLUMENG_SECRETS", str(tmp_path))
    secret = tmp_path / "shop"
    secret.write_text("shop-token-1")
    secret.chmod(0o600)

    async def test() -> None:
        journal = Journal()
        auth = SenderAuth(tokens={"shop": "${secret:shop}"})
        async with serving(journal, auth=auth) as (_, connect):
            client = await connect()
            form = ("Content-Type: application/x-www-form-urlencoded",)
            collector = "POST /services/collector/event/1.0"
            client.send(b"OPTIONS /services/collector/event/1.0 HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await client.status() == 200
            client.send(b"GET /services/collector/health HTTP/1.1\r\nHost: h\r\n\r\n")
            status, _, said = await client.answer()
            assert (status, said["code"]) == (200, 17)
            client.send(
                f"{collector} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(A + B)}\r\n{form[0]}\r\n"
                "Authorization: Splunk shop-token-1\r\n\r\n".encode(),
                A + B,
            )
            status, _, said = await client.answer()
            assert (status, said) == (200, {"text": "Success", "code": 0})
            assert journal.bodies() == [A, B]
            assert b"401" in await request(client, collector, A, *form)

    run(test)


def test_client_of_loki_gets_204() -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            place = "POST /loki/api/v1/push"
            kind = "Content-Type: application/json"
            assert b" 204 " in await request(client, place, A, kind)
            assert b" 204 " in await request(client, place, B, kind)
            assert journal.bodies() == [A, B]

    run(test)
