"""Asks a Prometheus server for what its scrapes of masters and nodes have recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import urllib3

from flumeng.platform.errors import UnavailableError, UserError

POINTS = 240
MOST_SERIES = 20
MOST_BYTES = 8 << 20
ASK_SECONDS = 5.0


@dataclass(frozen=True)
class Recorded:
    """A series: the values of its labels, and a value for each step; None where there is none."""

    labels: Mapping[str, str]
    values: Sequence[float | None]


class Prometheus:
    """``url``: of the server, such as ``http://HOST:9090``. Raises UserError for another text."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"--prometheus {url}: expected http://HOST:PORT or https://HOST[:PORT]")
        self._url = f"{url.rstrip('/')}/api/v1/query_range"
        self._http = urllib3.PoolManager(maxsize=4, retries=False, timeout=ASK_SECONDS)

    def over(self, query: str, now: float, seconds: float) -> list[Recorded]:
        """Return the series of a query over the last ``seconds``, in POINTS steps, oldest first; at
        most MOST_SERIES. ``now``: seconds since the epoch. Raises UnavailableError."""
        step = max(1.0, math.ceil(seconds / (POINTS - 1) * 1000) / 1000)  # whole milliseconds
        asked = {"query": query, "start": f"{now - step * (POINTS - 1):.3f}", "end": f"{now:.3f}"}
        try:
            answer = self._http.request(
                "GET", self._url, fields=asked | {"step": f"{step:.3f}"}, preload_content=False
            )
            body = answer.read(MOST_BYTES + 1)
            answer.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise UnavailableError(f"Prometheus at {self._url} does not answer: {error}") from error
        if answer.status != HTTPStatus.OK or len(body) > MOST_BYTES:
            said = body[:200].decode(errors="replace")
            raise UnavailableError(f"Prometheus at {self._url} answers {answer.status}: {said}")
        try:
            result = json.loads(body)["data"]["result"]
            return [_recorded(one, now, step) for one in result[:MOST_SERIES]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnavailableError(
                f"{self._url} does not answer as Prometheus does: {error}"
            ) from error


def _recorded(series: Mapping[str, Any], now: float, step: float) -> Recorded:
    values: list[float | None] = [None] * POINTS
    for time, text in series["values"]:
        index = round(POINTS - 1 - (now - float(time)) / step)
        value = float(text)
        if 0 <= index < POINTS and math.isfinite(value):
            values[index] = value
    labels = {str(name): str(value) for name, value in series["metric"].items()}
    return Recorded(labels, values)


def quoted(text: str) -> str:
    """Return a text as a string of PromQL."""
    return json.dumps(text, ensure_ascii=False)
