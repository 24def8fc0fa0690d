"""The first command that a stranger runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).parents[2] / "scripts" / "quickstart_job.py"


def test_every_event_is_in_the_lake_once(tmp_path: Path) -> None:
    """The job counts by itself, and fails when one is missing or twice there."""
    done = subprocess.run(
        [sys.executable, JOB, "--events", "2000"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2,000" in done.stdout
