"""Problems that `flow apply` reports for options that admit no sender, or too many."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from flumeng.config import parse_flow
from flumeng.connectors.http.senders import Senders
from flumeng.connectors.network.senders import SenderAuth
from flumeng.connectors.network.server_tls import canonical
from flumeng.platform.options.problems import SpecError

FILES = {"certificate": "/c.pem", "key": "/k.pem"}
MUTUAL = {**FILES, "client_ca": "/ca.pem"}
HEX = "ab" * 32
PAIRS = ":".join(["AB"] * 32)


def said(source: str, **options: Any) -> str:
    """The problem without its location."""
    flow = {"flow": "f", "sources": [{source: {"listen": "[::]:1", **options}}], "sinks": ["noop"]}
    with pytest.raises(SpecError) as error:
        parse_flow(yaml.safe_dump(flow))
    (problem,) = error.value.problems
    return f"{problem.path.removeprefix(f'sources[0].{source}.')}: {problem.message}"


def taken(source: str, **options: Any) -> None:
    flow = {"flow": "f", "sources": [{source: {"listen": "[::]:1", **options}}], "sinks": ["noop"]}
    parse_flow(yaml.safe_dump(flow))


def test_tokens_and_passwords_must_be_references() -> None:
    for kind in ("tokens", "users"):
        problem = said("http", auth={kind: {"shop": "hunter2"}})
        assert problem.startswith(f"auth.{kind}.shop: expected a reference to a secret")
        assert "hunter2" not in problem
        taken("http", auth={kind: {"shop": "${secret:shop}"}})


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        ({}, "auth: expected tokens, users, or tls with client_ca"),
        (
            {"tokens": {"a": "${secret:a}"}, "users": {"a": "${secret:b}"}},
            "auth.users.a: a token has the same name: use another one",
        ),
        (
            {"tokens": {"a": "${secret:a}"}, "paths": {"shop": ["a"]}},
            "auth.paths.shop: expected a path like /shop, without a slash at its end",
        ),
        (
            {"tokens": {"a": "${secret:a}"}, "paths": {"/shop": ["b"]}},
            'auth.paths./shop: unknown sender "b"; known here: a',
        ),
        (
            {"tokens": {"a": "${secret:a}"}, "paths": {"/shop": []}},
            "auth.paths./shop: expected at least one entry",
        ),
        (
            {"users": {"a:b": "${secret:a}"}},
            "auth.users.a:b: expected 1 to 63 letters, digits and any of _.@- after the first",
        ),
    ],
)
def test_auth_options_that_exclude_each_other_are_reported(
    auth: dict[str, Any], problem: str
) -> None:
    assert said("http", auth=auth) == problem


def test_http_paths_match_tls_clients_in_any_spelling() -> None:
    auth = {"paths": {"/": [f"sha256:{HEX}"], "/shop": ["*.POS.example"]}}
    taken("http", auth=auth, tls={**MUTUAL, "clients": [PAIRS, "*.pos.example"]})
    assert said("http", auth=auth, tls={**MUTUAL, "clients": [PAIRS]}) == (
        f'auth.paths./shop: unknown sender "*.POS.example"; known here: sha-256:{PAIRS}'
    )


@pytest.mark.parametrize("source", ["http", "syslog", "tcp"])
def test_client_names_and_revocation_lists_need_an_authority(source: str) -> None:
    for options in ({"clients": ["a.example"]}, {"client_crl": "/c.crl"}):
        assert said(source, tls={**FILES, **options}) == (
            f"tls.{next(iter(options))}: needs client_ca, the authorities that sign the senders"
        )


@pytest.mark.parametrize(
    ("client", "same"),
    [
        ("Web-1.Example", "web-1.example"),
        ("*.pos.example", "*.pos.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("FE80::0:1", "fe80::1"),
        ("spiffe://example/web", "spiffe://example/web"),
        ("urn:uuid:f81d4fae-7dec", "urn:uuid:f81d4fae-7dec"),
        (f"sha-256:{PAIRS}", f"sha-256:{PAIRS}"),
        (f"SHA256:{HEX}", f"sha-256:{PAIRS}"),
        (PAIRS, f"sha-256:{PAIRS}"),
    ],
)
def test_client_name_has_one_canonical_spelling(client: str, same: str) -> None:
    assert canonical(client) == same
    assert canonical(same) == same


@pytest.mark.parametrize(
    ("client", "problem"),
    [
        ("web*.example", "expected * only as the whole first label"),
        ("a.*.example", "expected * only as the whole first label"),
        ("*", "expected * only as the whole first label"),
        ("*.*.example", "expected * only as the whole first label"),
        ("*.10.0.0", "expected a DNS name"),
        ("web-1:6514", "expected a DNS name"),
        ("10.0.0.256", "expected a DNS name"),
        ("sha-1:" + ":".join(["AB"] * 20), "not sha-1: openssl x509 -noout -fingerprint -sha256"),
        ("sha-256:AB:CD", "expected 64 hexadecimal digits"),
    ],
)
def test_invalid_client_name_is_reported(client: str, problem: str) -> None:
    assert problem in said("syslog", tls={**MUTUAL, "clients": [client]})


def test_per_peer_limits_need_tcp() -> None:
    assert said("syslog", protocol="udp", per_peer={"events_per_second": 5}).startswith(
        "per_peer: needs the protocol tcp"
    )
    taken("syslog", per_peer={"events_per_second": 5, "bytes_per_second": "1 MiB"})


def test_path_covers_paths_below_it_and_none_beside_it() -> None:
    auth = SenderAuth(
        tokens={"a": "${secret:a}", "b": "${secret:b}"},
        paths={"/shop": ("a",), "/shop/till": ("b",)},
    )
    senders = Senders(auth, "[::]:8080", lambda: None)
    expected = {
        "/shop": {"a"},
        "/shop/x": {"a"},
        "/shop/till": {"b"},
        "/shop/till/1": {"b"},
        "/shop/tills": {"a"},
        "/shopping": set(),
        "/": set(),
        "/shop/../x": set(),
        "/shop/./till": set(),
    }
    assert {path: set(senders.may_use(path)) for path in expected} == expected
