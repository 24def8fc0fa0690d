"""Helpers for tests that stop the server they write to."""

from __future__ import annotations

import pytest

from tests.testkit.servers.server_process import ServerProcess


def need_own(server: ServerProcess) -> None:
    """Skip the test when the server is not its own."""
    if server.given is not None:
        pytest.skip(f"{server.variable} names a server that is not ours to stop or to set up")
