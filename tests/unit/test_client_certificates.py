"""By which names of its certificate a client is let in, and by which it never is."""

from __future__ import annotations

import pytest

from flumeng.connectors.network.certificates import Clients
from flumeng.connectors.network.peers import Client, UnauthorizedError
from flumeng.connectors.network.server_tls import canonical
from tests.unit.authority import Authority, der, fingerprint


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def admitted(authority: Authority, names: tuple[str, ...], *allowed: str) -> Client | None:
    certificate, _ = authority.issue("common.example", *names)
    try:
        return Clients(allowed).admit(der(certificate))
    except UnauthorizedError:
        return None


@pytest.mark.parametrize(
    ("names", "allowed", "client"),
    [
        (("web-1.example",), "web-1.example", "web-1.example"),
        (("WEB-1.example",), "web-1.EXAMPLE", "web-1.example"),
        (("other.example", "web-1.example"), "web-1.example", "web-1.example"),
        (("till-1.pos.example",), "*.pos.example", "till-1.pos.example"),
        (("10.0.0.1",), "10.0.0.1", "10.0.0.1"),
        (("2001:db8::1",), "2001:DB8:0::1", "2001:db8::1"),
        (("spiffe://example/web",), "spiffe://example/web", "spiffe://example/web"),
    ],
)
def test_who_is_let_in(
    authority: Authority, names: tuple[str, ...], allowed: str, client: str
) -> None:
    found = admitted(authority, names, allowed, "somebody.else.example")
    assert found is not None
    assert (found.name, found.let_in_by) == (client, frozenset([canonical(allowed)]))


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (("web-1.example",), "web-2.example"),
        (("web-1.example",), "eb-1.example"),
        (("pos.example",), "*.pos.example"),
        (("a.till-1.pos.example",), "*.pos.example"),
        (("till-1.pos.example.evil.example",), "*.pos.example"),
        (("*.pos.example",), "till-1.pos.example"),
        (("*.pos.example",), "*.pos.example"),
        (("web-1.example\0.evil.example",), "web-1.example"),
        (("10.0.0.1",), "10.0.0.2"),
        (("spiffe://example/web",), "spiffe://example/we"),
        (("spiffe://example/web",), "spiffe://example/WEB"),
        ((), "common.example"),
        ((), "*.example"),
        (("other.example",), "common.example"),
    ],
)
def test_who_is_not_let_in(authority: Authority, names: tuple[str, ...], allowed: str) -> None:
    """The common name never counts, a name with a wildcard names nobody."""
    assert admitted(authority, names, allowed) is None


def test_a_fingerprint_is_that_of_one_certificate(authority: Authority) -> None:
    first, _ = authority.issue("same", "same.example")
    allowed = fingerprint(first)
    client = Clients([allowed]).admit(der(first))
    assert (client.name, client.let_in_by) == (canonical(allowed), frozenset([canonical(allowed)]))
    second, _ = authority.issue("same", "same.example")
    with pytest.raises(UnauthorizedError, match=r"same\.example, sha-256:.*: not in tls\.clients"):
        Clients([allowed]).admit(der(second))


def test_with_no_names_all_are_let_in_by_the_first_of_theirs(authority: Authority) -> None:
    named = admitted(authority, ("10.0.0.1", "web-1.example"))
    assert named is not None
    assert named.name == "web-1.example"
    nameless = admitted(authority, ())
    assert nameless is not None
    assert nameless.name.startswith("sha-256:")


def test_what_is_no_certificate_is_a_stranger() -> None:
    with pytest.raises(UnauthorizedError, match="cannot be read"):
        Clients([]).admit(b"\x30\x03\x02\x01\x01")
