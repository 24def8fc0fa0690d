"""``python -m flumeng.agent.ingest``, started by a node."""

from __future__ import annotations

import sys

from flumeng.agent.ingest import memory


def main() -> int:
    memory.keep_buffers()
    from flumeng.agent.ingest import process  # noqa: PLC0415  # pyarrow reads its settings now

    return process.main()


if __name__ == "__main__":
    sys.exit(main())
