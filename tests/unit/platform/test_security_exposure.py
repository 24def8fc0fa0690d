"""Nothing is served in the open by mistake."""

from __future__ import annotations

import pytest

from flumeng.platform.errors import UserError
from flumeng.platform.security.exposure import require_proof_beyond_loopback
from flumeng.platform.security.roles import DIRECTORY


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_address_needs_no_identity(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    require_proof_beyond_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.7", "0.0.0.0", "::", "fe80::1%lo", "no.such.invalid"])
def test_address_beyond_loopback_needs_an_identity(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    with pytest.raises(UserError, match="--insecure"):
        require_proof_beyond_loopback(host)
    monkeypatch.setenv(DIRECTORY, "/etc/flumeng/identity")
    require_proof_beyond_loopback(host)
