"""Three sites on one host, and every command of the page for operators of many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

JOB = Path(__file__).parents[2] / "scripts" / "sites_job.py"


def test_commands_of_the_docs_page_for_sites_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, JOB, "--data", tmp_path / "sites"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every command did what the page says" in done.stdout
