"""Paths on which clients of Splunk HEC and Loki send, and the answers that these clients expect.

Every other path is as good for events; a request there is answered with ``{}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTH_PATH = "/health"
_HEC = "/services/collector"
_HEC_EVENTS = re.compile(rf"{_HEC}(/event)?(/1\.0)?/?")
_HEC_RAW = re.compile(rf"{_HEC}/raw(/1\.0)?/?")
_HEC_HEALTH = re.compile(rf"{_HEC}/health(/1\.0)?/?")
_LOKI = ("/loki/api/v1/push", "/api/prom/push")


@dataclass(frozen=True)
class KnownPath:
    """``status`` and ``said``: the answer to events that are taken. ``content_type``: replaces the
    header, which clients of this path set wrongly. ``options``: OPTIONS is answered as a probe."""

    status: int = 200
    said: Mapping[str, object] = field(default_factory=dict)
    content_type: str = ""
    health: bool = False
    options: bool = False


_SUCCESS = {"text": "Success", "code": 0}
_HEALTHY = {"text": "HEC is healthy", "code": 17}
_ANY = KnownPath()


def known_path(path: str) -> KnownPath:
    if path == HEALTH_PATH:
        return KnownPath(health=True)
    if path in _LOKI:
        return KnownPath(204)
    if not path.startswith(_HEC):
        return _ANY
    if _HEC_HEALTH.fullmatch(path):
        return KnownPath(said=_HEALTHY, health=True)
    if _HEC_EVENTS.fullmatch(path):
        return KnownPath(said=_SUCCESS, content_type="application/json", options=True)
    if _HEC_RAW.fullmatch(path):
        return KnownPath(said=_SUCCESS, options=True)
    return _ANY
