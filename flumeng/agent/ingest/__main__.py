"""``python -m flumeng.agent.ingest``, started by a node."""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 8 << 20
_MAPPED_FROM_BYTES = 32 << 20


def keep_buffers() -> None:
    """Configure memory allocation, before pyarrow is imported, for reused buffers of about 1 MiB.
    Arrow's own allocator keeps 12 MB more than the C library. ``mallopt``, if there is one (not in
    musl), makes the C library keep buffers too."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        tell(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


def main() -> int:
    keep_buffers()
    from flumeng.agent.ingest import process  # noqa: PLC0415  # pyarrow reads its settings now

    return process.main()


if __name__ == "__main__":
    sys.exit(main())
