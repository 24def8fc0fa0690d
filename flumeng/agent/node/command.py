"""The command line of each child process. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from flumeng.agent.node import children
from flumeng.agent.node.settings import Settings
from zkschema.records import COLLECT, INGEST


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
        port = settings.port + settings.workers + (child == COLLECT)
        command = [
            "flumeng.agent.collector" if child == COLLECT else "flumeng.agent.discovery",
            *common,
        ]
        command += ["--zk", settings.hosts, "--session-seconds", str(settings.session_seconds)]
    if settings.port:
        command += ["--port", str(port)]
    if child == COLLECT and spark:
        command += ["--spark", json.dumps(dict(spark))]
    return command
