"""A small file that must be whole and durable is synced in order, as the kernel saw it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
from flumeng.platform.durable_files import write_durably
write_durably(Path(sys.argv[1]), "{}")
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_content_is_synced_before_its_name_and_the_name_before_the_return(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    file = tmp_path / "data" / "claim.json"
    file.parent.mkdir()
    command = ["strace", "-f", "-y", "-e", "trace=fsync,rename", "-o", str(trace)]
    subprocess.run([*command, sys.executable, "-c", SCRIPT, str(file)], check=True)
    calls = re.findall(
        rf"(fsync|rename)\((?:\d+<|\")({re.escape(str(file.parent))}[^\">]*)", trace.read_text()
    )
    draft = str(file.with_suffix(".tmp"))
    assert calls == [("fsync", draft), ("rename", draft), ("fsync", str(file.parent))]
