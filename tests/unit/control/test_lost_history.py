"""A ZooKeeper that answers slowly: kazoo's only thread waits for the answer."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from flumeng.control.zookeeper.lost_history import _received


def test_trickling_answer_is_not_waited_for() -> None:
    asking, server = socket.socketpair()
    ended = threading.Event()

    def trickle() -> None:
        with server:
            for _ in range(200):
                server.sendall(b".")
                if ended.wait(0.02):
                    return

    with asking:
        trickling = threading.Thread(target=trickle)
        trickling.start()
        with pytest.raises(TimeoutError):
            _received(asking, time.monotonic() + 0.2)
        ended.set()
        trickling.join()


def test_answer_is_read_to_its_end() -> None:
    asking, server = socket.socketpair()
    with asking, server:
        server.sendall(b"Zxid: 0x1\n")
        server.sendall(b"Mode: leader\n")
        server.shutdown(socket.SHUT_WR)
        assert _received(asking, time.monotonic() + 60.0) == b"Zxid: 0x1\nMode: leader\n"
