"""What a node is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flumeng.agent.node.children import DEFAULT_LIMITS, Limits
from zkschema.records import COLLECT, COPY, INGEST


@dataclass(frozen=True)
class Settings:
    """``host`` is the address under which other nodes reach this one's journals, ``port`` that of
    its first ingest worker, the next has the next, and discovery and the collector the two after
    those (0: any that are free); ``workers`` is how many processes ingest; without a ``policy``
    that of ``flumeng.config.policy.find``, if there; ``limits`` says for how long its children
    may be silent. ``metrics`` is where they are served, ``metrics_channel`` the descriptor over
    which the parent asks for them."""

    name: str
    data: Path
    hosts: str
    host: str = "127.0.0.1"
    port: int = 0
    roles: tuple[str, ...] = (INGEST, COLLECT, COPY)
    workers: int = 1
    zone: str = ""
    labels: Mapping[str, str] | None = None
    capacity: Mapping[str, float] | None = None
    session_seconds: float = 10.0
    drain_seconds: float = 4.0
    policy: Path | None = None
    metrics: str | None = None
    metrics_channel: int | None = None
    limits: Limits = DEFAULT_LIMITS

    @property
    def measured(self) -> bool:
        return self.metrics is not None or self.metrics_channel is not None
