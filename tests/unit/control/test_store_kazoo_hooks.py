"""Another version of kazoo whose private parts differ is refused at the start, by name."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

import flumeng
from flumeng.control.zookeeper import kazoo_hooks
from flumeng.platform.errors import UserError


@pytest.fixture
def client() -> KazooClient:
    return KazooClient("127.0.0.1:1")


def test_installed_kazoo_has_every_hooked_part(client: KazooClient) -> None:
    kazoo_hooks.require(client)


@pytest.mark.parametrize("part", [*kazoo_hooks.OF_CONNECTION])
def test_missing_part_is_named(client: KazooClient, part: str) -> None:
    setattr(client._connection, part, None)
    with pytest.raises(UserError, match=rf"ConnectionHandler\.{part}\(.*"):
        kazoo_hooks.require(client)


def test_other_parameters_are_refused(client: KazooClient) -> None:
    client._connection._submit = client._connection._read_header
    with pytest.raises(UserError, match=re.escape("_submit(request, timeout, xid)")):
        kazoo_hooks.require(client)


def test_handler_without_select_is_refused() -> None:
    class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        @property
        def select(self) -> None:
            raise AttributeError("select")

    client = KazooClient("127.0.0.1:1", handler=Handler())
    with pytest.raises(UserError, match=re.escape("handler.select")):
        kazoo_hooks.require(client)


def test_requirement_has_the_bound_that_errors_name() -> None:
    settings = ConfigParser()
    settings.read(Path(flumeng.__file__).parents[1] / "setup.cfg")
    declared = settings["options"]["install_requires"].split()
    assert kazoo_hooks.SUPPORTED in declared
