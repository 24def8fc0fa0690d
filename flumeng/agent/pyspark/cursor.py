"""Functions for notebooks: commit the offsets of a reader with a cursor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from flumeng.agent.pyspark.options import Options
from flumeng.control.commands.cursors import Cursor
from flumeng.control.zookeeper import Store, kazoo_store
from flumeng.platform.errors import UserError
from flumeng.platform.security.roles import PEOPLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def next_offsets(events: DataFrame) -> dict[str, int]:
    """Return the seq after each journal's last event, in a Spark job. Persist ``events`` first."""
    rows = events.groupBy("journal").agg({"seq": "max"}).collect()
    return {journal: seq + 1 for journal, seq in rows}


def commit(offsets: Mapping[str, int], *, flow: str, cursor: str, zookeeper: str = "") -> None:
    """Move the cursor up to ``offsets``, never back; journals may then drop the events below.
    Raises UserError when there is no such cursor, ConflictError, UnavailableError."""
    hosts = zookeeper or os.environ.get("FLUMENG_ZK", "")
    options = Options.parse({"zookeeper": hosts, "flow": flow, "cursor": cursor})

    if not cursor:
        raise UserError("a commit needs the name of a cursor: set the argument `cursor`")

    def begin() -> Mapping[str, int]:
        raise UserError(f"flow {flow} has no cursor {cursor}: read the flow with it first")

    with closing(connect(options.zookeeper)) as store:
        taken = Cursor.take(store, options.flow, options.cursor, keep_seconds=None, begin=begin)
        taken.commit(offsets)


def connect(hosts: str) -> Store:
    """Connect with the subscriber's certificate if this host has one, else with the person's."""
    return kazoo_store.connect(hosts, roles=["subscriber", *PEOPLE])
