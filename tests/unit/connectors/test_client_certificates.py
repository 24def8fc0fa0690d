"""Names of a certificate that admit a client, and names that never do."""

from __future__ import annotations

import pytest

from flumeng.connectors.network.certificates import Clients
from flumeng.connectors.network.peers import Client, UnauthorizedError
from flumeng.connectors.network.server_tls import canonical
from tests.unit.connectors.authority import Authority, der, fingerprint


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
def test_client_with_an_allowed_name_is_admitted(
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
def test_client_without_an_allowed_name_is_refused(
    authority: Authority, names: tuple[str, ...], allowed: str
) -> None:
    """The common name never counts, a name with a wildcard matches no client."""
    assert admitted(authority, names, allowed) is None


def test_fingerprint_is_that_of_one_certificate(authority: Authority) -> None:
    first, _ = authority.issue("same", "same.example")
    allowed = fingerprint(first)
    client = Clients([allowed]).admit(der(first))
    assert (client.name, client.let_in_by) == (canonical(allowed), frozenset([canonical(allowed)]))
    second, _ = authority.issue("same", "same.example")
    with pytest.raises(UnauthorizedError, match=r"same\.example, sha-256:.*: not in tls\.clients"):
        Clients([allowed]).admit(der(second))


def test_without_allowed_names_every_client_is_admitted_by_its_first_name(
    authority: Authority,
) -> None:
    named = admitted(authority, ("10.0.0.1", "web-1.example"))
    assert named is not None
    assert named.name == "web-1.example"
    nameless = admitted(authority, ())
    assert nameless is not None
    assert nameless.name.startswith("sha-256:")


def test_unreadable_certificate_is_refused() -> None:
    with pytest.raises(UnauthorizedError, match="certificate is unreadable"):
        Clients([]).admit(b"\x30\x03\x02\x01\x01")
