"""Requests and answers between gateways and readers of different versions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import (
    FlowPositions,
    LeaseAnswer,
    LeaseRequest,
    PositionsRequest,
    parse,
    understood,
)
from flumeng.platform.errors import CorruptError, UserError

POSITIONS = FlowPositions("fra", {"web.n1.0.aa": Position(1, 0, 9, closed=False)}, {}, (), "x")


def newer(message: object) -> Any:
    document = json.loads(msgspec.json.encode(message))
    return {**document, "of_a_newer_version": {"a": [1]}}


def test_fields_of_a_newer_gateway_are_ignored() -> None:
    document = newer(POSITIONS)
    document["positions"]["web.n1.0.aa"]["of_a_newer_version"] = 1
    assert understood(FlowPositions, document) == POSITIONS
    assert understood(LeaseAnswer, newer(LeaseAnswer("fra", "i"))) == LeaseAnswer("fra", "i")


def test_fields_of_a_newer_reader_are_ignored() -> None:
    request = LeaseRequest("web", "nyc", "copy", 60.0, {"web.n1.0.aa": 3})
    assert parse(LeaseRequest, json.dumps(newer(request)).encode()) == request


def test_reader_before_the_end_of_leases_is_understood() -> None:
    document = {"flow": "web", "site": "nyc", "reader": "c", "keep_seconds": 60, "acks": {}}
    assert not parse(LeaseRequest, json.dumps(document).encode()).end


@pytest.mark.parametrize("missing", ["ends", "positions", "site"])
def test_missing_field_of_another_version_is_named(missing: str) -> None:
    document = newer(POSITIONS)
    del document[missing]
    with pytest.raises(CorruptError, match=f"another version.*`{missing}`.*upgrade"):
        understood(FlowPositions, document)


def test_request_without_a_field_is_refused_by_its_name() -> None:
    with pytest.raises(UserError, match="flow"):
        parse(PositionsRequest, b"{}")
