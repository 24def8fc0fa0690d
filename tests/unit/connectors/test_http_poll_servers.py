"""Servers that are away, slow, hostile, or send a poll elsewhere; and secrets."""

from __future__ import annotations

import base64
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.polls import http_client
from flumeng.connectors.polls.http_options import HttpAuth, OAuth2, Paging, TrackField
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError
from tests.testkit.servers.tls import Authority, TlsFront
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

SECRET = "s3cr3t-of-the-api"
BASIC = HttpAuth(username="me", password="${secret:poll}")
BEARER = HttpAuth(bearer="${secret:poll}")


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_POLL", SECRET)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_temporary_http_errors_are_retried(status: int) -> None:
    with serving(lambda _: Said(b"later", status)) as server:
        error = error_of(server.url)
    assert isinstance(error, UnavailableError)
    assert f"HTTP {status}: later" in str(error)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 418, 451])
def test_permanent_http_errors_are_reported_with_advice(status: int) -> None:
    with serving(lambda _: Said(b"no", status)) as server:
        error = error_of(f"{server.url}/v1?a=b")
    assert isinstance(error, UserError)
    hint = http_client.HINTS.get(status, "no")
    assert str(error).startswith(f"GET {server.url}/v1: HTTP {status}: no")
    assert str(error).endswith(hint)


@pytest.mark.slow
def test_retry_after_is_kept_within_bounds() -> None:
    with (
        serving(lambda _: Said(b"", 429, {"Retry-After": "1"})) as server,
        polling(source(server.url)) as poll,
    ):
        for seconds in ("1", "999999999999", "Wed, 01 Jan 2098 00:00:00 GMT"):
            server.answer = always(Said(b"", 429, {"Retry-After": seconds}))
            with pytest.raises(UnavailableError, match="HTTP 429"):
                poll.ask("", DUE)
            if seconds == "1":
                server.answer = lambda _: said([1])
                with pytest.raises(UnavailableError, match=r"allows no request for 1 s"):
                    poll.ask("", DUE)
                time.sleep(poll._client.rest_seconds)
                assert answers(poll)[0] == [b"1"]
                continue
            asked = len(server.got)
            with pytest.raises(UnavailableError, match=r"allows no request for 3[0-9]{3} s"):
                poll.ask("", DUE)
            assert len(server.got) == asked
            poll._client._not_before = 0.0
    for text in ("", "soon", "-1", "Wed, 01 Jan 1998 00:00:00 GMT", "9" * 5000 + "x", "\u0661"):
        assert http_client.after_seconds(text) == 0.0
    with serving(lambda _: Said(b"", 403, {"Retry-After": "1"})) as server:
        assert isinstance(error_of(server.url), UnavailableError)


def test_absent_server_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert isinstance(error_of(f"http://127.0.0.1:{port}/"), UnavailableError)
    assert isinstance(error_of("http://no-such-host.invalid/"), UnavailableError)


SLOW = b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"[" * 2000
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HANGS = {
    "header": Said(raw=SLOW, slowly=0.05),
    "body": Said(b"[" * 2000, slowly=0.05),
    "without an end": Said(raw=b"HTTP/1.0 200 OK\r\n\r\n" + b" " * 2000, slowly=0.05),
    "chunks": Said(raw=CHUNKED + b"1\r\n[\r\n" * 500, slowly=0.05),
    "chunk size": Said(raw=CHUNKED + b"0" * 2000, slowly=0.05),
    "redirect": Said(b"", 302, {"Location": "/again"}, slowly=0.05),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", HANGS)
def test_slowly_trickling_answer_times_out(how: str) -> None:
    """No socket is silent for as long as its timeout, and yet the request ends."""
    with serving(lambda _: HANGS[how]) as server:
        began = time.monotonic()
        error = error_of(server.url, timeout_seconds=0.6)
        took = time.monotonic() - began
    if how != "redirect":
        assert isinstance(error, UnavailableError)
        assert "no complete answer within 0.6 s" in str(error)
    assert took < 3


@pytest.mark.slow
def test_a_poll_that_is_closed_ends_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with polling(source(url, timeout_seconds=60.0)) as poll:
            threading.Timer(0.3, poll.close).start()
            began = time.monotonic()
            with pytest.raises(UnavailableError, match="closed"):
                poll.ask("", DUE)
            assert time.monotonic() - began < 3
            with pytest.raises(UnavailableError, match="closed"):
                poll.ask("", DUE)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff" * 500,
        b"HTTP/1.1 999999 \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n[]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n[]",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"H%d: x\r\n" % n for n in range(500)) + b"\r\n[]",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n[]",
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://\xff\xfe:99999/\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_garbage_answer_is_one_of_three_errors(raw: bytes) -> None:
    with serving(lambda _: Said(raw=raw)) as server:
        assert isinstance(error_of(server.url), (UnavailableError, UserError, CorruptError))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_stay_on_the_server(status: int) -> None:
    def answer(got: Got) -> Said:
        return said([1]) if got.path == "/there" else Said(b"", status, {"Location": "there"})

    with serving(answer) as server:
        assert ask_once(f"{server.url}/here", auth=BEARER) == [b"1"]
        assert [got.headers["Authorization"] for got in server.got] == [f"Bearer {SECRET}"] * 2


def test_no_other_server_gets_the_credentials_of_a_request() -> None:
    """Redirections and links to another server are followed only where the source allows them, and
    without its headers."""
    with (
        serving(lambda _: said([1])) as other,
        serving(
            lambda _: Said(b"", 302, {"Location": f"{other.url}/files/a/../x?sig=1"})
        ) as server,
    ):
        options: dict[str, Any] = {
            "auth": BEARER,
            "headers": {"X-Api-Key": "${secret:poll}", "Cookie": "a=${secret:poll}"},
            "query": {"key": "${secret:poll}"},
        }
        error = error_of(server.url, **options)
        assert isinstance(error, UserError)
        assert "on another server" in str(error)
        assert not other.got
        refused = error_of(server.url, redirect_to=(f"{other.url}/file",), **options)
        assert isinstance(refused, UserError)
        assert not other.got
        allowed = ask_once(server.url, redirect_to=(f"{other.url}/files",), **options)
        assert allowed == [b"1"]
        (got,) = other.got
        assert (got.path, got.query) == ("/files/x", {"sig": "1"})
        assert SECRET not in str(got)
        assert server.got[-1].headers["X-Api-Key"] == SECRET
        server.answer = lambda _: said([2], Link=f'<{other.url}/files/2>; rel="next"')
        linked = ask_once(
            server.url, redirect_to=(f"{other.url}/files",), paging=Paging(by="link"), **options
        )
        assert linked == [b"2", b"1"]
        assert SECRET not in str(other.got)


def test_number_of_redirects_is_bounded() -> None:
    with serving(lambda _: Said(b"", 302, {"Location": "/again"})) as server:
        assert "redirects more than 5 times" in str(error_of(server.url))
        assert len(server.got) == 6


def test_a_post_is_not_redirected_elsewhere() -> None:
    with (
        serving(lambda _: said([1])) as other,
        serving(
            lambda got: Said(b"", 307, {"Location": f"{other.url}/" if got.path == "/x" else "/x"})
        ) as server,
    ):
        error = error_of(server.url, method="POST", body="{}", redirect_to=(other.url,))
        assert isinstance(error, UserError)
        assert not other.got
        server.answer = lambda _: Said(b"", 302, {"Location": "/x"})
        assert "redirects a POST" in str(error_of(server.url, method="POST", body="{}"))


def test_basic_and_bearer_credentials_are_sent() -> None:
    with serving(lambda _: said([])) as server:
        ask_once(server.url, auth=BASIC)
        ask_once(server.url, auth=BEARER)
    pair = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert [got.headers["Authorization"] for got in server.got] == [
        f"Basic {pair}",
        f"Bearer {SECRET}",
    ]


@pytest.mark.parametrize("place", ["header", "body"])
def test_tokens_are_cached_and_renewed(place: Any) -> None:
    tokens: list[str] = []
    valid = {"t1"}

    def answer(got: Got) -> Said:
        if got.path == "/token":
            tokens.append(got.body.decode())
            return said({"access_token": f"t{len(tokens)}", "expires_in": 3600})
        token = got.headers["Authorization"].removeprefix("Bearer ")
        return said([1]) if token in valid else Said(f"bad {token}".encode(), 401)

    with serving(answer) as server:
        oauth2 = OAuth2(
            token_url=f"{server.url}/token",
            client_id="me",
            client_secret="${secret:poll}",
            credentials_in=place,
            parameters={"scope": "a b"},
        )
        with polling(source(server.url, auth=HttpAuth(oauth2=oauth2))) as poll:
            assert answers(poll)[0] == [b"1"]
            assert answers(poll, "", later(1))[0] == [b"1"]
            assert len(tokens) == 1
            valid.clear()
            valid.add("t2")
            assert answers(poll, "", later(2))[0] == [b"1"]
            valid.clear()
            with pytest.raises(UserError, match=r"HTTP 401: bad \*\*\*: check `auth`"):
                poll.ask("", DUE)
            assert len(tokens) == 3
            server.answer = lambda got: said(
                {"access_token": None}, 401 if got.path == "/" else 200
            )
            with pytest.raises(UserError, match="not JSON with an access_token"):
                poll.ask("", DUE)
    assert all(form.startswith("grant_type=client_credentials&scope=a+b") for form in tokens)
    assert ("client_secret" in tokens[0]) == (place == "body")


def test_no_error_and_no_state_shows_a_secret() -> None:
    """The server sends the request back, in each place where it may be quoted."""
    with_all: dict[str, Any] = {
        "auth": BASIC,
        "headers": {"X-Key": "k ${secret:poll}"},
        "query": {"key": "${secret:poll}"},
    }

    def echo(got: Got, status: int = 400) -> Said:
        return Said(f"{got.query} {got.headers} {got.body!r}".encode(), status)

    pair = base64.b64encode(f"me:{SECRET}".encode()).decode()
    with serving(echo) as server:
        for status in (400, 401, 500, 200):
            server.answer = partial(echo, status=status)
            told = str(error_of(server.url, **with_all))
            assert SECRET not in told
            assert pair not in told
        server.answer = lambda got: Said(
            b"", 302, {"Location": f"http://127.0.0.2/{got.query['key']}?{got.query['key']}"}
        )
        assert SECRET not in str(error_of(server.url, **with_all))
        server.answer = lambda _: said([], Link=f'</?key={SECRET}&p=2>; rel="next"')
        with polling(source(server.url, paging=Paging(by="link"), **with_all)) as poll:
            server.answer = _then_nothing(
                server.got, said([], Link=f"</?key={SECRET}&p=2>; rel=next")
            )
            state = poll.ask("", DUE).state
            assert SECRET not in state
        assert {"key": SECRET, "p": "2"} in [got.query for got in server.got]
        server.answer = lambda _: said({"next": f"c-{SECRET}"})
        with (
            polling(
                source(server.url, paging=Paging(by="cursor", path="next"), **with_all)
            ) as poll,
            pytest.raises(UserError, match="puts a secret into"),
        ):
            poll.ask("", DUE)


@pytest.mark.slow
def test_token_that_a_server_sends_back_is_in_no_state() -> None:
    """Servers write it into the URL of the next page: that is asked for with the header. Elsewhere
    it is refused, also when it was renewed in between."""
    token, renewed = "t0ken+of/one=", "t0ken-of-two"
    given = iter([token, renewed])
    written = quote(token, safe="")

    def answer(got: Got) -> Said:
        if got.path == "/token":
            return said({"access_token": next(given), "expires_in": 3600})
        if got.query.get("p") == "2":
            return Said(b"", 503)
        return said([1], Link=f'</?access_token={written}&p=2>; rel="next"')

    with serving(answer) as server:
        oauth2 = OAuth2(
            token_url=f"{server.url}/token", client_id="me", client_secret="${secret:poll}"
        )
        options = {"auth": HttpAuth(oauth2=oauth2), "paging": Paging(by="link")}
        with polling(source(server.url, **options)) as poll:
            state = poll.ask("", DUE).state
            assert "/?p=2" in state
            assert not any(text in state for text in (token, written))
            poll._auth.forget()
            server.answer = lambda got: (
                answer(got)
                if got.path == "/token"
                else said([1], Link=f'</{token}?p=3>; rel="next"')
                if got.path == "/"
                else Said(b"", 503)
            )
            with pytest.raises(UserError, match="puts a secret into") as refused:
                poll.ask(state, DUE)
            assert token not in str(refused.value)
            assert server.got[-1].headers["Authorization"] == f"Bearer {renewed}"


def _then_nothing(got: list[Got], first: Said) -> Any:
    """A second page, then a failure that keeps its state, and is not retried in the same answer."""
    begin = len(got)

    def answer(_: Got) -> Said:
        count = len(got) - begin
        following = [first, said([], Link=f"</?key={SECRET}&p=3>; rel=next")]
        return following[count - 1] if count <= len(following) else Said(b"", 400)

    return answer


@pytest.mark.slow
def test_a_certificate_has_to_be_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    with serving(lambda _: said([1])) as server:
        front = TlsFront(server.port, certificate, key)
        url = f"https://127.0.0.1:{front.port}/"
        error = error_of(url)
        assert isinstance(error, UserError)
        assert "certificate is not trusted" in str(error)
        assert "tls.ca" in str(error)
        assert ask_once(url, tls=ClientTls(ca=str(authority.ca))) == [b"1"]
        wrong = error_of(url.replace("127.0.0.1", "localhost"), tls=ClientTls(ca=str(authority.ca)))
        assert isinstance(wrong, UserError)
        front.close()
    with pytest.raises(UserError, match="tls: /nowhere"):
        ask_once("https://127.0.0.1/", tls=ClientTls(ca="/nowhere"))


@pytest.mark.slow
def test_certificate_authority_applies_to_redirects(tmp_path: Path) -> None:
    """Also for one that is reached by TLS after another that was reached without."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    with serving(lambda _: said([1])) as server:
        last = TlsFront(server.port, certificate, key)
        home = TlsFront(server.port, certificate, key)
        url, end = (f"https://127.0.0.1:{front.port}/" for front in (home, last))

        def answer(got: Got) -> Said:
            if got.path == "/plain":
                return Said(b"", 302, {"Location": f"{end}end"})
            first = Said(b"", 302, {"Location": f"{server.url}/plain"})
            return said([1]) if got.path == "/end" else first

        server.answer = answer
        trusting = ClientTls(ca=str(authority.ca))
        assert ask_once(url, tls=trusting, redirect_to=(server.url, end)) == [b"1"]
        home.close()
        last.close()


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(lambda _: said([1])) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", f"//me:{SECRET}@"))
        assert ask_once("http://api.invalid/v1") == [b"1"]
        headers = {name.lower(): text for name, text in proxy.got[0].headers.items()}
        pair = base64.b64encode(f"me:{SECRET}".encode()).decode()
        assert headers["proxy-authorization"] == f"Basic {pair}"
        monkeypatch.setenv("no_proxy", "api.invalid")
        error = error_of("http://api.invalid/v1")
        assert isinstance(error, UnavailableError)
        assert SECRET not in str(error)


HEADERS = st.dictionaries(
    st.sampled_from(
        ["Link", "ETag", "Content-Type", "Content-Encoding", "Retry-After", "Location"]
    ),
    st.one_of(
        st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60),
        st.sampled_from(["gzip", "deflate", "text/x; charset=utf-16", '<?p=2>; rel="next"', "/x"]),
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["items", "t", "next"]), inner, max_size=3)
    ),
    max_leaves=10,
)
WAYS: list[dict[str, Any]] = [
    {"records": "items"},
    {"records": "items?[*].t?", "paging": Paging(by="url", path="next")},
    {"records": "items", "paging": Paging(by="cursor", path="items[-1].t"),
     "query": {"c": "{cursor}"}},
    {"paging": Paging(by="link"), "track": TrackField(path="t", type="time")},
    {"format": "ndjson", "track": TrackField(path="t", type="number")},
    {"format": "text"},
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([200, 200, 200, 204, 304, 302, 404, 429, 500]),
    HEADERS,
    st.one_of(st.binary(max_size=60), JSON),
    st.sampled_from(WAYS),
)
def test_any_answer_of_a_server_is_read_or_one_of_three_errors(
    status: int, headers: dict[str, str], content: Any, options: dict[str, Any]
) -> None:
    answer = said(content) if not isinstance(content, bytes) else Said(content)
    answer.status, answer.headers = status, headers
    with serving(lambda _: answer) as server, polling(source(server.url, **options)) as poll:
        state = ""
        for turn in range(3):
            try:
                state = poll.ask(state, later(turn // 2)).state
            except FlumengError as error:
                assert isinstance(error, (UnavailableError, UserError, CorruptError))
            poll._client._not_before = 0.0
