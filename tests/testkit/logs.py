"""Log lines of a test."""

from __future__ import annotations

import pytest


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of records with a traceback. The text may have none: PySpark, once loaded,
    formats it as JSON."""
    return sum(bool(record.exc_info and record.exc_info[0]) for record in caplog.records)
