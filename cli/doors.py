"""What commands reach the world through.

The doors travel as click's context object, so that tests (and later the shell) give their own.
"""

from __future__ import annotations

import functools
import getpass
import logging
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar

import click

from cli.options import zk_option
from flumeng.overview import Ask, ask_worker
from flumeng.store import Store

P = ParamSpec("P")
R = TypeVar("R")

CONNECT_SECONDS = 5.0
SESSION_SECONDS = 4.0


def connect(hosts: str) -> Store:
    """Gives up before the 10 s within which a command must have answered.

    An attempt under way when the time is up may take another ``SESSION_SECONDS`` to end.
    """
    from flumeng.store import zookeeper  # noqa: PLC0415  loads kazoo

    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # our own sentence says it better
    return zookeeper.connect(hosts, session_seconds=SESSION_SECONDS, wait_seconds=CONNECT_SECONDS)


def _who() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


class Signature(TypedDict):
    """Who makes a change, why, and when: what every operation takes."""

    author: str
    reason: str
    now: float


@dataclass(frozen=True)
class Doors:
    """The world as a command sees it. ``clock`` gives seconds since the epoch."""

    connect: Callable[[str], Store] = connect
    ask: Ask = ask_worker
    who: Callable[[], str] = _who
    clock: Callable[[], float] = time.time

    def sign(self, reason: str) -> Signature:
        return {"author": self.who(), "reason": reason, "now": self.clock()}


def with_store(command: Callable[Concatenate[Doors, Store, P], R]) -> Callable[P, R]:
    """Add ``--zk``, and call the command with the doors and an open store, closed afterwards."""

    @zk_option
    @functools.wraps(command)
    def opened(*args: P.args, **options: P.kwargs) -> R:
        doors = click.get_current_context().ensure_object(Doors)
        hosts: Any = options.pop("hosts")
        with closing(doors.connect(hosts)) as store:
            return command(doors, store, *args, **options)

    return opened
