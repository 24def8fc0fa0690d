"""The base of all Flight servers, without certificates of an authority."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, cast

import pytest

from flumeng.journal.serving import service
from flumeng.journal.serving.action_server import ActionServer
from flumeng.platform.errors import UserError
from tests.testkit.waiting import wait_for

if TYPE_CHECKING:
    from flumeng.platform.security.credentials import Keystore


class Unreadable:
    """A keystore of an open cluster that has become unreadable since the server began."""

    loads = 0

    @property
    def changed(self) -> tuple[int, ...]:
        return (self.loads,)

    def load(self) -> None:
        self.loads += 1
        if self.loads > 1:
            raise UserError("node.pem cannot be read")


class Recovering(Unreadable):
    def load(self) -> None:
        self.loads += 1
        if 1 < self.loads < 4:
            raise UserError("node.pem cannot be read")


class KeepsServing(ActionServer):
    def _renew(self, own: object) -> None:
        """Keep the server: it has no certificate to renew."""


def test_end_of_an_unusable_certificate_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(service, "LOOK_SECONDS", 0.01)
    keystore = Recovering()
    server = KeepsServing("127.0.0.1", {}, keystore=cast("Keystore", keystore))
    again = f"server {server.address}: the certificate can be read again"
    wait_for(lambda: again in caplog.messages)
    server.stop()
    assert len(caplog.messages) == 2


def test_unusable_new_certificate_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The files are read again and again until they can be used."""
    monkeypatch.setattr(service, "LOOK_SECONDS", 0.01)
    keystore = Unreadable()
    server = ActionServer("127.0.0.1", {}, keystore=cast("Keystore", keystore))
    wait_for(lambda: keystore.loads > 3)
    server.stop()
    loads = keystore.loads
    time.sleep(0.1)
    assert keystore.loads <= loads + 1, "it follows no more"
    assert caplog.messages == [
        f"node.pem cannot be read; server {server.address} keeps its previous certificate"
    ]
