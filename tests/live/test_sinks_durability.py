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


SINK = """
import sys
import pyarrow as pa
from flumeng.connectors.files.options import Files
from flumeng.connectors.files.sink import StageFiles
root = sys.argv[1]
options = Files(root + "/{host}", marker=True)
write = StageFiles(options, root + "/_flumeng/batch", makes_staging=True)
list(write(iter([pa.record_batch({"host": ["a", "b"]})])))
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_staged_files_of_the_sink_are_synced_and_then_their_directory(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-y", "-e", "trace=fsync", "-o", str(trace), sys.executable]
    subprocess.run([*command, "-c", SINK, str(tmp_path / "lake")], check=True)
    batch = tmp_path / "lake" / "_flumeng" / "batch"
    synced = re.findall(rf"fsync\(\d+<({re.escape(str(batch))}[^>]*)", trace.read_text())
    staged = [str(path) for path in batch.iterdir()]
    assert len(staged) == 4, "a file and a marker for each host"
    assert (sorted(synced[-5:-1]), synced[-1]) == (sorted(staged), str(batch))


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
