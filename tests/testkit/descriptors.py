"""Descriptors of the test's own process, which it shares with other tests of its worker."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path


def own_descriptors() -> set[str]:
    """The numbers of this process's descriptors, without those of TCP sockets: a shared Spark opens
    one at any time to have its JVM forget objects."""
    gc.collect()
    tables = (Path("/proc/self/net", name).read_text() for name in ("tcp", "tcp6"))
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    tcp = {f"socket:[{row[9]}]" for row in rows}
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            if str(descriptor.readlink()) not in tcp:
                found.add(descriptor.name)
    return found
