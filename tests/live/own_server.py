"""What tests need that stop the server they write to."""

from __future__ import annotations

import pytest

from tests.testkit.servers.server_process import ServerProcess


def need_own(server: ServerProcess) -> None:
    """Skip the test at a server that only was named."""
    if server.given is not None:
        pytest.skip(f"{server.variable} names a server that is not ours to stop or to set up")
