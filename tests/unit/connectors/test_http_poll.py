"""Requests of a poll over HTTP, the records in its answers, and the start of the next request."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib
from typing import Any

import pytest

from flumeng.connectors.polls.http_options import Paging, TrackField
from flumeng.connectors.polls.http_poll import ANSWER_BYTES
from flumeng.connectors.polls.poll import MOST_STATE_BYTES
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from tests.unit.connectors.polled_server import (
    DUE,
    Got,
    Said,
    always,
    answers,
    ask_once,
    error_of,
    later,
    polling,
    said,
    serving,
    source,
)  # fmt: skip


def numbered(*numbers: int) -> list[dict[str, int]]:
    return [{"id": number} for number in numbers]


def bodies(*numbers: int) -> list[bytes]:
    return [b'{"id":%d}' % number for number in numbers]


RECORDS: list[tuple[bytes, str | None, list[bytes]]] = [
    (b'[{"a" : 1.10}, {"a":12345678901234567890123}]', None,
     [b'{"a":1.10}', b'{"a":12345678901234567890123}']),
    (b'{"a": 1}', None, [b'{"a":1}']),
    (b'[1, "x", null, [2]]', None, [b"1", b'"x"', b"null", b"[2]"]),
    (b'{"data": {"items": [{"b": "\\u00e4 "}]}}', "data.items", [b'{"b":"\\u00e4 "}']),
    (b'{"hits": [{"s": {"n": 1}}, {"s": {"n": 2}}]}', "hits[*].s", [b'{"n":1}', b'{"n":2}']),
    (b'{"rows": [{"v": [1, 2]}, {"v": []}, {"v": [3]}]}', "rows[*].v", [b"1", b"2", b"3"]),
    (b'{"@odata.value": [[7]]}', '["@odata.value"][-1]', [b"7"]),
    (b'{"items": null}', "items", []),
    (b'{"items": []}', "items", []),
    (b"{}", "items?", []),
    (b'{"data": null}', "data.items", []),
    (b"", None, []),
    (b" \n", "items", []),
    (b"\xef\xbb\xbf[1]", None, [b"1"]),
    (b'{"i": ["\\ud83d", "\\ud83d\\ude00", "\\\\ud83d"]}', "i",
     [b'"\\ufffd"', b'"\\ud83d\\ude00"', b'"\\\\ud83d"']),
]  # fmt: skip


@pytest.mark.parametrize(("content", "path", "expected"), RECORDS)
def test_records_keep_their_original_text(
    content: bytes, path: str | None, expected: list[bytes]
) -> None:
    with serving(lambda _: Said(content)) as server:
        assert ask_once(server.url, records=path) == expected


@pytest.mark.parametrize(
    ("content", "path", "told"),
    [
        (b"<html>", None, "is not JSON"),
        (b'{"a": 1} {"a": 2}', None, "is not JSON"),
        (b'[{"a": NaN}]', None, "is not JSON"),
        (b"[" * 100_000, None, "is not JSON"),
        (b'"text"', None, "leads neither to an array nor to an object"),
        (b'{"error": "no"}', "data.items", "has no data of the path"),
        (b'{"data": []}', "data.items", "has no items of"),
        (b'{"data": [1]}', "data[3]", r"has no \[3\] of"),
        (b'{"data": {}}', "data[*]", r"has no \[\*\] of"),
        (b'{"data": 7}', "data", "leads neither to an array nor to an object"),
    ],
)
def test_unusable_answer_is_reported_with_advice(
    content: bytes, path: str | None, told: str
) -> None:
    with serving(lambda _: Said(content)) as server, pytest.raises(UserError, match=told) as seen:
        ask_once(f"{server.url}/v1?key=1", records=path)
    assert str(seen.value).startswith(f"GET {server.url}/v1: ")


TEXTS: list[tuple[str, bytes, str, list[bytes]]] = [
    ("lines", b"a\r\n\nb", "text/plain", [b"a", b"", b"b"]),
    ("ndjson", b'{"a":1}\n\n{"a":2}\n', "application/x-ndjson", [b'{"a":1}', b'{"a":2}']),
    ("text", b"# a\nup 1\n", "text/plain; charset=utf-8", [b"# a\nup 1\n"]),
    ("lines", "grüße\n".encode("latin-1"), "text/plain; charset=ISO-8859-1", ["grüße".encode()]),
    ("lines", "ü\nä\n".encode("utf-16"), 'text/plain; charset="utf-16"',
     ["ü".encode(), "ä".encode()]),
    ("json", '["ä"]'.encode("latin-1"), "application/json; charset=latin1", ['"ä"'.encode()]),
    ("lines", b"\xff\n", "text/plain", [b"\xff"]),
    ("lines", b"", "text/plain", []),
]  # fmt: skip


@pytest.mark.parametrize(("form", "content", "kind", "expected"), TEXTS)
def test_answer_bodies_become_utf8_events(
    form: Any, content: bytes, kind: str, expected: list[bytes]
) -> None:
    with serving(lambda _: Said(content, headers={"Content-Type": kind})) as server:
        assert ask_once(server.url, format=form) == expected


@pytest.mark.parametrize("charset", ["punycode", "zip", "nobody", "unicode_escape", "\x00"])
def test_unknown_charset_is_reported(charset: str) -> None:
    headers = {"Content-Type": f"text/plain; charset={charset}"}
    with serving(lambda _: Said(b"x", headers=headers)) as server:
        assert isinstance(error_of(server.url, format="text"), UserError)


def test_compressed_answers_are_read_and_truncated_ones_are_not() -> None:
    whole = b"line\n" * 1000
    raw = zlib.compressobj(wbits=-15)
    packed: dict[str, list[bytes]] = {
        "gzip": [gzip.compress(whole), gzip.compress(whole[:2500]) + gzip.compress(whole[2500:])],
        "deflate": [zlib.compress(whole), raw.compress(whole) + raw.flush()],
    }
    for encoding, contents in packed.items():
        for content in contents:
            headers = {"Content-Encoding": encoding}
            with serving(always(Said(content, headers=headers))) as server:
                assert ask_once(server.url, format="lines") == [b"line"] * 1000
            with serving(always(Said(content[:-9], headers=headers))) as server:
                assert isinstance(error_of(server.url, format="lines"), CorruptError)
    with serving(lambda _: Said(b"x", headers={"Content-Encoding": "br"})) as server:
        assert isinstance(error_of(server.url, format="lines"), CorruptError)


@pytest.mark.slow
def test_compression_bomb_is_not_unpacked() -> None:
    """200 MiB of one letter are 200 KiB of gzip: no more than 64 MiB of them are ever there."""
    bomb = gzip.compress(b"x" * (200 * 2**20), compresslevel=1)
    with serving(lambda _: Said(bomb, headers={"Content-Encoding": "gzip"})) as server:
        tracemalloc.start()
        error = error_of(server.url, format="text")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(error, UserError)
        assert "larger than 64 MiB" in str(error)
        assert peak < 100 * 2**20
    with serving(lambda _: Said(bomb, 500, headers={"Content-Encoding": "gzip"})) as server:
        assert isinstance(error_of(server.url), UnavailableError)


def test_size_of_an_event_is_bounded() -> None:
    with serving(lambda _: Said(b"x\n" + b"y" * (2**24 + 1))) as server:
        for form in ("text", "lines"):
            error = error_of(server.url, format=form)
            assert isinstance(error, UserError)
            assert "larger than 16 MiB" in str(error)


def paged(got: Got, paging: Paging, url: str) -> Said:
    """Three records on two pages."""
    place = got.query.get("p", "")
    first = place in ("", "0") or (paging.first == 1 and place == "1")
    content: dict[str, Any] = {"items": numbered(1, 2) if first else numbered(3)}
    if paging.by in ("page", "offset") and place == "3":
        content["items"] = []
    headers = {}
    if first and paging.by == "link":
        headers["Link"] = (
            '</x?p=1>; rel="prev first", </v1/events?p=2&x=%2C>; title="a, b"; rel=next'
        )
    if paging.by in ("url", "cursor"):
        following = {"url": f"{url}/v1/events?p=2", "cursor": "c 2"}[paging.by]
        content["next"] = following if first else None
    return said(content, 200, **headers)


@pytest.mark.parametrize(
    ("paging", "seconds"),
    [
        (Paging(by="link"), [{"p": "2", "x": ","}]),
        (Paging(by="url", path="next"), [{"p": "2"}]),
        (Paging(by="cursor", path="next"), [{"p": "c 2", "n": "9"}]),
        (Paging(by="page"), [{"p": "2", "n": "9"}, {"p": "3", "n": "9"}]),
        (Paging(by="page", size=2), [{"p": "2", "n": "9"}]),
        (Paging(by="page", first=0, size=2), [{"p": "1", "n": "9"}]),
        (Paging(by="offset"), [{"p": "2", "n": "9"}, {"p": "3", "n": "9"}]),
        (Paging(by="offset", size=2), [{"p": "2", "n": "9"}]),
    ],
)
def test_pages_follow_each_other(paging: Paging, seconds: list[dict[str, str]]) -> None:
    query = {"n": "9"} | ({"p": f"{{{paging.variable}}}"} if paging.variable else {})
    with serving(lambda got: paged(got, paging, server.url)) as server:
        found = ask_once(f"{server.url}/v1/events", query=query, records="items", paging=paging)
    assert found == bodies(1, 2, 3)
    assert [got.query for got in server.got[1:]] == seconds
    assert {got.path for got in server.got} == {"/v1/events"}


def test_a_cursor_may_be_in_the_last_record() -> None:
    def answer(got: Got) -> Said:
        after = int(got.query.get("after", "0"))
        return said({"data": numbered(*range(after + 1, min(after + 3, 6)))})

    paging = Paging(by="cursor", path="data[-1].id")
    with serving(answer) as server:
        found = ask_once(server.url, query={"after": "{cursor}"}, records="data", paging=paging)
    assert found == bodies(1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("paging", "answer"),
    [
        (Paging(by="page"), said(numbered(1))),
        (Paging(by="cursor", path="[0].id"), said(numbered(1))),
        (Paging(by="link"), said(numbered(1), Link='<?p=1>; rel="next"')),
    ],
)
def test_server_that_repeats_one_page_is_reported(paging: Paging, answer: Said) -> None:
    query = {"p": f"{{{paging.variable}}}"} if paging.variable else {}
    with (
        serving(lambda _: answer) as server,
        polling(source(server.url, query=query, paging=paging)) as poll,
        pytest.raises(UserError, match="repeats the same page"),
    ):
        answers(poll)
    assert len(server.got) <= 4


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:{}/x", "http://a:b@127.0.0.1:{}/", "ftp://x/"]
)
def test_next_page_on_another_server_is_not_requested(target: str) -> None:
    def answer(_: Got) -> Said:
        return said({"items": [], "next": target.format(server.port)})

    with serving(answer) as server:
        error = error_of(server.url, records="items", paging=Paging(by="url", path="next"))
    assert isinstance(error, UserError)
    assert len(server.got) == 1


@pytest.mark.slow
def test_large_answer_comes_in_several_requests() -> None:
    """Each ask ends with a whole page, and a new process goes on from its state."""
    half = "x" * (ANSWER_BYTES // 3)
    pages = [[{"id": number, "x": half} for number in (p * 2, p * 2 + 1)] for p in range(7)]

    def answer(got: Got) -> Said:
        number = int(got.query["p"]) - 1
        return said(pages[number] if number < len(pages) else [])

    with serving(answer) as server:
        options = source(server.url, query={"p": "{page}"}, paging=Paging(by="page"))
        state, found, more, asks = "", [], True, 0
        while more:
            with polling(options) as poll:
                result = poll.ask(state, DUE)
            state, more, asks = result.state, result.more, asks + 1
            found += [json.loads(body)["id"] for body in result.bodies.to_pylist()]
    assert found == list(range(14))
    assert asks == 4
    assert [got.query["p"] for got in server.got] == [str(n) for n in range(1, 9)]


def test_server_that_asks_for_a_delay_blocks_no_thread() -> None:
    """Polls share threads: one that waits in its own keeps others from being asked."""
    page = Said(b"", 429, {"Retry-After": "30"})
    with (
        serving(lambda got: said([1]) if got.query["p"] == "1" else page) as server,
        polling(source(server.url, query={"p": "{page}"}, paging=Paging(by="page"))) as poll,
    ):
        began = time.monotonic()
        first = poll.ask("", DUE)
        assert (first.bodies.to_pylist(), first.more) == ([b"1"], True)
        for _ in range(3):
            with pytest.raises(UnavailableError, match="allows no request for"):
                poll.ask(first.state, DUE)
        assert time.monotonic() - began < 2
    assert [got.query["p"] for got in server.got] == ["1", "2"]


@pytest.mark.slow
def test_received_pages_are_kept_when_a_later_one_fails() -> None:
    broken = True

    def answer(got: Got) -> Said:
        page = int(got.query["p"])
        return Said(b"", 503) if page == 3 and broken else said(numbered(page) if page < 5 else [])

    with (
        serving(answer) as server,
        polling(source(server.url, query={"p": "{page}"}, paging=Paging(by="page"))) as poll,
    ):
        first = poll.ask("", DUE)
        assert (first.bodies.to_pylist(), first.more) == (bodies(1, 2), True)
        with pytest.raises(UnavailableError, match="HTTP 503"):
            poll.ask(first.state, DUE)
        assert [got.query["p"] for got in server.got[2:]] == ["3"] * 6
        broken = False
        assert answers(poll, first.state)[0] == bodies(3, 4)


@pytest.mark.slow
def test_pages_of_a_failed_due_time_come_once() -> None:
    """The due time that follows goes on where it is stuck, and asks for its own then."""
    broken = True

    def answer(got: Got) -> Said:
        page = int(got.query["p"])
        if page == 3 and broken:
            return Said(b"", 400)
        return said(numbered(page) if page < 5 else [])

    query = {"p": "{page}", "from": "{last}", "to": "{due}"}
    with (
        serving(answer) as server,
        polling(source(server.url, query=query, paging=Paging(by="page"))) as poll,
    ):
        first = poll.ask("", DUE)
        assert (first.bodies.to_pylist(), first.more) == (bodies(1, 2), True)
        broken = False
        found, state, _ = answers(poll, first.state, later(5))
    assert found == bodies(3, 4, 1, 2, 3, 4)
    asked = [(got.query["p"], got.query.get("from"), got.query["to"]) for got in server.got[3:]]
    begin, end = "2026-11-26T12:00:00Z", "2026-11-26T12:05:00Z"
    assert asked == [
        *((page, None, begin) for page in "345"),
        *((page, begin, end) for page in "12345"),
    ]
    assert '"chain":null' in state


def test_position_that_the_server_has_forgotten_is_left_once() -> None:
    """A cursor may expire. But where each walk ends at the same page, its earlier pages must not
    come with each due time."""

    def answer(got: Got) -> Said:
        gone = got.query.get("c") == "old"
        return Said(b"", 410) if gone else said({"i": numbered(1), "next": "old"})

    paging = Paging(by="cursor", path="next")
    query = {"c": "{cursor}", "since": "{last}"}
    with (
        serving(answer) as server,
        polling(source(server.url, query=query, records="i", paging=paging)) as poll,
    ):
        first = poll.ask("", DUE)
        with pytest.raises(UserError, match="HTTP 410"):
            poll.ask(first.state, DUE)
        anew = poll.ask(first.state, later(1))
        assert (anew.bodies.to_pylist(), anew.more) == (bodies(1), True)
        for minutes in (2, 3):
            with pytest.raises(UserError, match="HTTP 410"):
                poll.ask(anew.state, later(minutes))
        server.answer = lambda _: said({"i": numbered(1, 2)})
        assert answers(poll, first.state, later(1))[0] == bodies(1, 2, 1, 2)
    assert server.got[-2].query == {"c": "old"}


def test_late_repeat_of_a_due_time_does_not_move_the_window_back() -> None:
    """The window before it was requested with a later one, and is not requested twice."""
    with (
        serving(lambda _: said([1])) as server,
        polling(source(server.url, query={"from": "{last}", "to": "{due}"})) as poll,
    ):
        _, state, _ = answers(poll)
        _, state, _ = answers(poll, state, later(5))
        for again in (2, 5):
            assert answers(poll, state, later(again)) == ([], state, 1)
        answers(poll, state, later(6))
    assert [got.query.get("from") for got in server.got] == [
        None, "2026-11-26T12:00:00Z", "2026-11-26T12:05:00Z",
    ]  # fmt: skip


def test_measurement_is_repeated_late() -> None:
    """And its new state does not lie before the old one."""
    with (
        serving(lambda _: said([1])) as server,
        polling(source(server.url, query={"at": "{due}"})) as poll,
    ):
        _, state, _ = answers(poll, "", later(5))
        assert answers(poll, state) == ([b"1"], state, 1)
    assert server.got[-1].query == {"at": "2026-11-26T12:00:00Z"}


def test_windows_of_consecutive_due_times_are_contiguous() -> None:
    """Without ``track``, {last} is the {due} before: also when due times were left out."""
    query = {"from": "{last}", "to": "{due}", "u": "{due:unix}", "m": "{last:unix_ms}",
             "d": "{due:%Y/%m/%d %H}"}  # fmt: skip
    with (
        serving(lambda _: said([])) as server,
        polling(
            source(
                server.url, query=query, settle_seconds=30.0, start_from="2026-11-26T12:00:00+01:00"
            )
        ) as poll,
    ):
        _, state, _ = answers(poll)
        _, state, _ = answers(poll, state, later(1))
        answers(poll, state, later(5))
    first, second, third = (got.query for got in server.got)
    assert first == {
        "from": "2026-11-26T11:00:00Z",
        "to": "2026-11-26T11:59:30Z",
        "u": "1795694370",
        "m": "1795690800000",
        "d": "2026/11/26 11",
    }
    assert (second["from"], second["to"]) == (first["to"], "2026-11-26T12:00:30Z")
    assert (third["from"], third["to"]) == (second["to"], "2026-11-26T12:04:30Z")


@pytest.mark.slow
@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("newest_first", [True, False])
def test_tracking_leaves_no_gap_and_has_no_overlap(inclusive: bool, newest_first: bool) -> None:
    """Records come between polls, several at one value, and the server gives those of the last
    value again, or not; in either order, over pages."""
    log: list[dict[str, Any]] = []

    def answer(got: Got) -> Said:
        since = float(got.query.get("since", "-1"))
        fits = [r for r in log if (r["at"] >= since if inclusive else r["at"] > since)]
        start = int(got.query["o"])
        return said((fits[::-1] if newest_first else fits)[start : start + 2])

    track = TrackField(path="at", type="number")
    options = {"query": {"since": "{last}", "o": "{offset}"}, "paging": Paging(by="offset")}
    found: list[int] = []
    with serving(answer) as server:
        state = ""
        for turn in range(6):
            steps = (1, 1, 2) if inclusive else (1, 2, 3)
            for step in steps:
                log.append({"at": turn * 3 + step + 0.5, "id": len(log)})
            if inclusive and turn:
                log.append({"at": (turn - 1) * 3 + 2.5, "id": len(log)})
                log.sort(key=lambda r: (r["at"], r["id"]))
            with polling(source(server.url, track=track, **options)) as poll:
                new, state, _ = answers(poll, state, later(turn))
            found += [json.loads(body)["id"] for body in new]
    assert sorted(found) == list(range(len(log)))


def test_tracked_value_is_sent_as_received() -> None:
    values = [
        "2026-11-26T12:00:00.5Z",
        "2026-11-26T14:00:00.123456789+01:00",
        "2026-11-26T12:00:00Z",
    ]
    with (
        serving(lambda _: said([{"t": value} for value in values])) as server,
        polling(
            source(
                server.url,
                query={"since": "{last}"},
                track=TrackField(path="t", type="time"),
                start_from="2026-11-26T12:00:00Z",
            )
        ) as poll,
    ):
        new, state, _ = answers(poll)
        assert len(new) == 3
        again, state, _ = answers(poll, state, later(1))
        values.append("2026-11-26T13:00:00.1234567891Z")
        newest, _, _ = answers(poll, state, later(2))
    sent = [got.query["since"] for got in server.got]
    assert sent == ["2026-11-26T12:00:00Z", values[1], values[1]]
    assert (again, newest) == ([], [b'{"t":"2026-11-26T13:00:00.1234567891Z"}'])


@pytest.mark.parametrize(
    ("kind", "content", "told"),
    [
        ("time", [{"t": "yesterday"}], "is not a time"),
        ("number", [{"t": "1e5x"}], "is not a number"),
        ("number", [{"t": "nan"}], "is not a number"),
        ("text", [{"t": {"a": 1}}], "neither a text nor a number"),
        ("text", [{"t": "x" * 2000}], "neither a text nor a number"),
        ("text", [{"u": 1}, {"t": None}], "no record has t"),
        ("number", [1, 2], "no record has t"),
    ],
)
def test_untrackable_value_is_reported(kind: Any, content: Any, told: str) -> None:
    with serving(lambda _: said(content)) as server, pytest.raises(UserError, match=told):
        ask_once(server.url, track=TrackField(path="t", type=kind))


def test_record_without_the_tracked_value_is_an_event() -> None:
    with (
        serving(lambda _: said([{"t": 1}, {"u": 1}])) as server,
        polling(source(server.url, track=TrackField(path="t", type="number"))) as poll,
    ):
        _, state, _ = answers(poll)
        assert answers(poll, state, later(1))[0] == [b'{"u":1}']


def test_state_with_thousands_of_equal_track_values_stays_small() -> None:
    content = [{"t": 1, "id": number} for number in range(10_000)]
    with serving(lambda _: said(content)) as server, polling(
        source(server.url, track=TrackField(path="t", type="number"), query={"o": "{offset}"},
               paging=Paging(by="offset", size=20_000))
    ) as poll:  # fmt: skip
        new, state, _ = answers(poll)
        assert len(new) == 10_000
        assert len(state) < MOST_STATE_BYTES
        assert len(answers(poll, state, later(1))[0]) == 8_000


def test_unchanged_answer_is_not_read_again() -> None:
    def answer(got: Got) -> Said:
        if got.headers.get("If-None-Match") == '"7"':
            assert got.headers["If-Modified-Since"] == "Thu, 26 Nov 2026 11:00:00 GMT"
            return Said(status=304)
        return said(numbered(7), ETag='"7"', Last_Modified="Thu, 26 Nov 2026 11:00:00 GMT")

    with serving(answer) as server:
        with polling(source(server.url)) as poll:
            new, state, _ = answers(poll)
            assert new == bodies(7)
        with polling(source(server.url)) as poll:
            for turn in (1, 2):
                new, state, _ = answers(poll, state, later(turn))
                assert new == []
        with polling(source(f"{server.url}/other")) as poll:
            assert answers(poll, state, later(3))[0] == bodies(7)
        paging = Paging(by="link")
        with polling(source(server.url, paging=paging)) as poll:
            assert answers(poll, state, later(3))[0] == bodies(7)


def test_post_body_contains_variables_and_secrets() -> None:
    body = '{"q": {"from": "{last}", "to": "{due}", "n": {}}, "k": "${secret:poll-key}"}'
    with serving(lambda _: said([{"t": 'a"b'}])) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLUMENG_SECRET_POLL_KEY", 'quo"te')
        with polling(
            source(server.url, method="POST", body=body, track=TrackField(path="t", type="text"))
        ) as poll:
            _, state, _ = answers(poll)
            answers(poll, state, later(1))
    first, second = (json.loads(got.body) for got in server.got)
    assert first == {"q": {"from": "", "to": "2026-11-26T12:00:00Z", "n": {}}, "k": 'quo"te'}
    assert second["q"]["from"] == 'a"b'
    assert server.got[0].headers["Content-Type"] == "application/json"


def test_other_tracked_field_does_not_continue_from_the_old_state() -> None:
    """Records that are new would lie below it."""
    with serving(lambda _: said([{"id": 900, "rank": 3}])) as server:

        def ask(state: str, track: TrackField | None) -> str:
            with polling(source(server.url, track=track)) as poll:
                return answers(poll, state)[1]

        by_id = TrackField(path="id", type="number")
        state = ask(ask("", None), by_id)
        for other in (TrackField(path="rank", type="number"), TrackField(path="id", type="text")):
            for before in (state, ask(state, None)):
                with pytest.raises(UserError, match=r"by id as a number, which.*another flow"):
                    ask(before, other)
        assert ask(state, by_id) == state


def test_invalid_state_is_damage() -> None:
    with polling(source("http://127.0.0.1:1/")) as poll:
        for state in ("x", "[]", '{"v": 2}', DUE.isoformat(), '{"column": "id", "value": "7"}',
                      '{"v": 1, "until": "soon"}', '{"v": 1, "chain": {"due": 1}}',
                      '{"v": 1, "chain": {"due": "", "by": "link", "at": "x"}}',
                      '{"v": 1, "chain": {"due": "2026-11-26T12:00:00Z", "by": "page", "at": "x"}}',
                      "[" * 60_000):  # fmt: skip
            with pytest.raises(CorruptError, match=r"not one of http_poll.*use another flow"):
                poll.ask(state, DUE)
