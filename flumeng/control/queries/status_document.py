"""The types of the documents that ``health.status`` and ``flow_rates.top`` return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from flumeng.control.queries.cursors import CursorRow
from flumeng.control.queries.flow_rates import FlowRates
from flumeng.control.queries.links import LinkRow
from flumeng.control.queries.overview import NodeRow


class CauseShown(TypedDict):
    """Why the cluster is degraded. ``about``: identifies the cause as long as it lasts."""

    what: str
    advice: str
    about: str


class NodesCounted(TypedDict):
    live: int
    registered: int


class HealthShown(TypedDict):
    """As ``FlowHealth``; ``shown``: in words."""

    state: str
    detail: str
    cause: str
    advice: str
    shown: str


class RolloutShown(TypedDict):
    """As ``RolloutRow``."""

    revision: int
    before: int
    stage: str
    canary: int
    max_parallel: int
    tasks: int
    taken: int
    running: int
    paused: bool


class FlowStatus(TypedDict):
    """``acked``: sum of all acks. ``lag``: undelivered events in partitions with a known end;
    ``lag_unknown``: number of the others. ``lag_seconds``: age of the oldest event."""

    flow: str
    part_of: str
    state: str
    health: HealthShown
    revision: int
    tasks: int
    running: int
    acked: int
    lag: int
    lag_unknown: int
    lag_seconds: float | None
    lag_trend: str
    lag_limit_seconds: float
    rollout: RolloutShown | None
    went_back: str


class Status(TypedDict):
    """``health``: ``ok``, ``degraded``, or ``unknown`` before a console's first look.
    ``masters``: the live ones. ``leases``: of other sites on flows here."""

    health: str
    causes: list[CauseShown]
    maintenance: bool
    masters: list[str]
    nodes: NodesCounted
    flows: list[FlowStatus]
    links: list[LinkRow]
    leases: list[CursorRow]


class Top(Status):
    """``rates``: by flow."""

    node_rows: list[NodeRow]
    rates: Mapping[str, FlowRates]
