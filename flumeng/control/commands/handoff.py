"""Handoff: what a flow's tasks have read and gathered is delivered now, however long a small batch
would still have waited.

The number in the flow's record is another one each time. Masters tell it to the nodes with the
flow's tasks, and a task that sees a new number delivers what is safe at that moment: nobody who
comes late misses it, and nothing is done twice for one number.
"""

from __future__ import annotations

from dataclasses import replace

from flumeng.control.commands.flow_records import expect_current, refuse_deleted, require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Put
from flumeng.platform.errors import ConflictError
from zkschema import paths


def hand_off(operator: Operator, flow: str, *, expect_revision: int | None = None) -> int:
    """Ask for it; gives the number of the handoff.

    Raises ``UserError`` for a flow that does not exist, ``ConflictError`` for one that nobody
    collects, ``UnavailableError``.
    """
    current = require_flow(operator.store, flow)
    expect_current(flow, current, expect_revision)
    refuse_deleted(flow, current.value, "what it accepted is delivered anyway")
    if current.value.state == "suspended":
        raise ConflictError(
            f"flow {flow} is paused, so no task of it delivers anything: `flumeng flow resume "
            f"{flow}` first"
        )
    wanted = replace(current.value, handoff=current.value.handoff + 1)
    operator.commit([Put(paths.flow(flow), wanted, current.version)], f"flow handoff {flow}")
    return wanted.handoff
