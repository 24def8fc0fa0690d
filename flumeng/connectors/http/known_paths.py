"""Paths of Splunk HEC and Loki with the answers that their clients expect.

Requests on all other paths are accepted too, and answered with ``{}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTH_PATH = "/health"


@dataclass(frozen=True)
class KnownPath:
    """``status`` and ``said``: the answer to accepted events. ``content_type`` replaces the
    clients' wrong header. ``options``: OPTIONS is a probe."""

    status: int = 200
    said: Mapping[str, object] = field(default_factory=dict)
    content_type: str = ""
    health: bool = False
    options: bool = False


_SUCCESS = {"text": "Success", "code": 0}
_HEALTHY = {"text": "HEC is healthy", "code": 17}
_ANY = KnownPath()
_HEC = "/services/collector"
_KNOWN = {
    HEALTH_PATH: KnownPath(health=True),
    "/loki/api/v1/push|/api/prom/push": KnownPath(204),
    rf"{_HEC}/health(/1\.0)?/?": KnownPath(said=_HEALTHY, health=True),
    rf"{_HEC}(/event)?(/1\.0)?/?": KnownPath(
        said=_SUCCESS, content_type="application/json", options=True
    ),
    rf"{_HEC}/raw(/1\.0)?/?": KnownPath(said=_SUCCESS, options=True),
}


def known_path(path: str) -> KnownPath:
    found = (known for pattern, known in _KNOWN.items() if re.fullmatch(pattern, path))
    return next(found, _ANY)
