"""Records the flows of a collector's running jobs, so that the node knows them after a crash. Each
job has a file in ``DATA/jobs``, not synced, since it only has to survive the process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flumeng.platform import private_directory

DIRECTORY = "jobs"


class RunningJobs:
    """The files of running jobs in a node's data directory. Thread-safe."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._directory = data / DIRECTORY
        self._numbers = itertools.count()

    @contextmanager
    def job(self, flows: Collection[str]) -> Iterator[None]:
        """Record ``flows`` while a job runs. A full disk never prevents the job."""
        file = self._directory / str(next(self._numbers))
        with suppress(OSError):
            self._directory.mkdir(mode=0o700, exist_ok=True)
            private_directory.write_private(file, json.dumps(sorted(flows)))
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()

    def take(self) -> frozenset[str]:
        """Return the flows of unfinished jobs and remove the files of these jobs."""
        flows: set[str] = set()
        for file in self._directory.glob("*"):
            with suppress(OSError, ValueError):
                flows.update(map(str, json.loads(file.read_text())))
            with suppress(OSError):
                file.unlink()
        return frozenset(flows)
