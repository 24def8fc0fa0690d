"""Nodes' reports of the journals that they hold.

Protects that an operator can decide while nodes are upgraded one by one.
"""

from __future__ import annotations

from flumeng.control.queries.journals import ask_replicas
from flumeng.journal.serving.action_server import ActionServer


def test_older_node_reports_no_copies() -> None:
    server = ActionServer("127.0.0.1", {})
    try:
        assert ask_replicas(server.address) == {}
    finally:
        server.stop()
