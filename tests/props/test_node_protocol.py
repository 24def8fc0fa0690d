"""Any bytes of a child: a line is a message with all its fields, or it is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.node.events import Reported, Tick
from flumeng.agent.node.machine import Machine
from flumeng.agent.node.protocol import MessageError, from_child
from zkschema import codec
from zkschema.records import COLLECT, INGEST

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)
)
TASKS = st.fixed_dictionaries(
    {
        "epoch": st.integers() | VALUES,
        "revision": st.integers() | VALUES,
        "state": st.sampled_from(["running", "failed", "stopped", "starting", "odd"]) | VALUES,
    },
    optional={"error": st.text() | VALUES, "epoch_seen": st.integers() | VALUES},
)
MESSAGES = st.fixed_dictionaries(
    {"type": st.sampled_from(["status", "alive", "sing"]) | VALUES},
    optional={
        "answers": st.integers() | VALUES,
        "tasks": st.dictionaries(st.text(max_size=5), TASKS) | VALUES,
        "journals": st.just({}) | VALUES,
        "kept_flows": st.lists(st.text(max_size=3)) | VALUES,
        "address": st.text(max_size=5) | VALUES,
        "held": st.text(max_size=5) | VALUES,
    },
)
LINES = st.binary(max_size=50) | MESSAGES.map(lambda message: json.dumps(message).encode() + b"\n")


@pytest.mark.slow
@given(lines=st.lists(LINES, max_size=5))
def test_a_message_of_a_child_never_harms_the_node(lines: list[bytes]) -> None:
    machine = Machine((INGEST, COLLECT), lambda: 0.0)
    machine.handle(Tick())
    machine.handle(Reported("ingest.0", {"type": "ready"}))
    for line in lines:
        try:
            message = from_child(line)
        except MessageError:
            continue
        if message["type"] != "ready":
            machine.handle(Reported("ingest.0", message))
    codec.encode(machine.status)


@pytest.mark.parametrize("field", ["epoch", "revision", "epoch_seen"])
def test_text_in_place_of_a_number_is_refused(field: str) -> None:
    """The numbers that several workers report of a task are compared."""
    task = {"epoch": 1, "revision": 1, "epoch_seen": 1, "state": "running"} | {field: "x"}
    status = {"type": "status", "answers": 1, "tasks": {"f/t": task}}
    with pytest.raises(MessageError):
        from_child(json.dumps(status).encode() + b"\n")
