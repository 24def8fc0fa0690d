"""``python -m benches.relay_readers ADDRESS JOURNAL START END N``: N subscribers of a flow, as the
source sees them. Each copies the range over a connection of its own, and drops it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from benches.relay_sites import Site
from flumeng.connectors.sites.fetching import OPTIONS
from flumeng.journal.serving.client import JournalClient


def source_cpu_seconds(source: Site, target: Site, start: int, end: int, readers: int) -> float:
    """CPU seconds of the source's node while so many at the target read the range."""
    before = source.cpu_seconds
    with target.ends.inside(target.end):
        command = [sys.executable, "-m", "benches.relay_readers", source.gateway, source.journal]
        subprocess.run([*command, str(start), str(end), str(readers)], check=True)
    return source.cpu_seconds - before


def _copy(address: str, journal: str, start: int, end: int) -> int:
    with JournalClient(address, 300.0, options=OPTIONS) as client:
        return sum(batch.nbytes for batch in client.copy(journal, start, end))


def main() -> None:
    address, journal, *numbers = sys.argv[1:]
    start, end, readers = map(int, numbers)
    with ThreadPoolExecutor(readers) as pool:
        copies = [pool.submit(_copy, address, journal, start, end) for _ in range(readers)]
        sizes = {copy.result() for copy in copies}
    assert len(sizes) == 1, sizes


if __name__ == "__main__":
    main()
