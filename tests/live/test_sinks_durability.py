"""A local lake syncs its files and directories before it answers, as the kernel saw it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from flumeng.platform.file_store import LOCAL
root = sys.argv[1]
LOCAL.make_directory(root + "/_flumeng/batch")
with LOCAL.open_output(root + "/_flumeng/batch/part") as out:
    out.write(b"x")
LOCAL.sync(root + "/_flumeng/batch/part")
LOCAL.sync(root + "/_flumeng/batch")
LOCAL.rename([(root + "/_flumeng/batch/part", root + "/dt=1/hour=2/part")])
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_files_and_every_directory_on_the_way_are_synced_in_order(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    root = tmp_path / "new" / "lake"
    calls = "trace=openat,fsync,rename,mkdir"
    command = ["strace", "-f", "-y", "-e", calls, "-o", str(trace), sys.executable, "-c", SCRIPT]
    subprocess.run([*command, str(root)], check=True)

    done = [
        (call, Path(path).relative_to(tmp_path).as_posix())
        for call, path in re.findall(
            rf"(mkdir|fsync|rename)\((?:\d+<|\")({re.escape(str(tmp_path))}/[^\">]*)",
            trace.read_text(),
        )
    ]
    staged, shown = done[: done.index(("rename", "new/lake/_flumeng/batch/part"))], done
    shown = done[len(staged) + 1 :]
    for directory in ("new", "new/lake", "new/lake/_flumeng", "new/lake/_flumeng/batch"):
        assert ("fsync", directory) in staged[staged.index(("mkdir", directory)) :]
    file = staged.index(("fsync", "new/lake/_flumeng/batch/part"))
    assert ("fsync", "new/lake/_flumeng/batch") in staged[file:]
    for directory in ("new/lake/dt=1/hour=2", "new/lake/dt=1", "new/lake"):
        assert ("fsync", directory) in shown
