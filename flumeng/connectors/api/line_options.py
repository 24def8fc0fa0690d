"""The option ``max_line_bytes`` of sources that read lines."""

from __future__ import annotations

from typing import Any

from flumeng.platform.options.option import option

_MAX_LINE_DOC = "A longer line is cut there, marked with the attribute `truncated` and counted."


def max_line_bytes() -> Any:
    return option(doc=_MAX_LINE_DOC, between=(64, 2**24), default=2**20)
