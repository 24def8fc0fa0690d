from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flumeng.agent.node import children
from flumeng.agent.node.children import DEFAULT_LIMITS, Limits
from zkschema.records import COLLECT, DISCOVER, GATEWAY, INGEST, REPLICA

MODULES = {
    DISCOVER: "flumeng.agent.discovery",
    COLLECT: "flumeng.agent.collector",
    GATEWAY: "flumeng.agent.gateway",
}
"""The module of each child besides ingest workers, in the order of their ports."""


@dataclass(frozen=True)
class Settings:
    """The settings of a node. ``host``: its address for other nodes. ``port``: of the first ingest
    worker; the other workers, discovery, the collector and the gateway have the next ones (0: any
    free ones).
    ``warm_collector``: keep a collector running without tasks.
    ``metrics_channel``: the descriptor over which the parent requests metrics."""

    name: str
    data: Path
    hosts: str
    host: str = "127.0.0.1"
    port: int = 0
    roles: tuple[str, ...] = (INGEST, COLLECT, REPLICA)
    workers: int = 1
    zone: str = ""
    labels: Mapping[str, str] | None = None
    capacity: Mapping[str, float] | None = None
    session_seconds: float = 10.0
    drain_seconds: float = 4.0
    policy: Path | None = None
    warm_collector: bool = True
    metrics: str | None = None
    metrics_channel: int | None = None
    limits: Limits = DEFAULT_LIMITS

    @property
    def measured(self) -> bool:
        return self.metrics is not None or self.metrics_channel is not None


def command_of(child: str, settings: Settings, data: Path, spark: Mapping[str, str]) -> list[str]:
    common = ["--data", str(data), "--node", settings.name, "--host", settings.host]
    if settings.policy is not None:
        common += ["--policy", str(settings.policy)]
    if children.role_of(child) == INGEST:
        number = children.number_of(child)
        port = settings.port + number
        command = ["flumeng.agent.ingest", *common]
        command += ["--worker", str(number), "--workers", str(settings.workers)]
    else:
        port = settings.port + settings.workers + list(MODULES).index(child)
        command = [MODULES[child], *common]
        command += ["--zk", settings.hosts, "--session-seconds", str(settings.session_seconds)]
    if settings.port:
        command += ["--port", str(port)]
    if child == COLLECT and settings.warm_collector:
        command.append("--warm")
    if child == COLLECT and spark:
        command += ["--spark", json.dumps(dict(spark))]
    return command
