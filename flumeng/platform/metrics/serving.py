"""Starts serving metrics over HTTP and to the parent. Imported only when asked for, since it loads
``prometheus_client``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from flumeng.platform.metrics.channel import Channel
from flumeng.platform.metrics.endpoint import Endpoint
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.instruments import ASK_SECONDS, Instruments
from flumeng.platform.metrics.page import Readings

log = logging.getLogger(__name__)


def serve(
    process: str,
    health: Health,
    readings: Readings,
    *,
    listen: str | None = None,
    descriptor: int | None = None,
    children: Callable[[], Mapping[str, Channel]] = dict,
    ask_seconds: float = ASK_SECONDS,
) -> Instruments:
    """At ``listen`` over HTTP, and at ``descriptor`` for the parent. Raises UserError when the
    address cannot be used."""
    instruments = Instruments(process, health, readings, children, ask_seconds)
    if listen is not None:
        log.info("metrics at %s", Endpoint(listen, instruments).url)
    if descriptor is not None:
        instruments.serve_parent(descriptor)
    return instruments
