"""Three sites on one host, and every command of the tutorials about them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

JOB = Path(__file__).parents[2] / "scripts" / "sites_job.py"


@pytest.mark.parametrize("options", [(), ("--relay",)], ids=["inventory", "relay"])
def test_commands_of_a_tutorial_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, JOB, "--data", tmp_path / "sites", *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every command did what the page says" in done.stdout
