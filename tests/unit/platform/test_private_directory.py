"""Files in a data directory are for its user alone, for any umask and any creator."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.node.claim import Claim
from flumeng.agent.node.data_directory import FLOWS, DataDirectory, KnownNames
from flumeng.agent.node.running_jobs import RunningJobs
from flumeng.journal.log.encryption import Key, Keyring
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.repair import repair
from flumeng.platform import private_directory
from flumeng.platform.errors import UserError
from tests.testkit.journal import numbered_events

ID = "other.n1.0.0a1b2c3d"


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def open_to_others(root: Path) -> list[str]:
    """Files and directories with other modes than 0600 and 0700."""
    wrong = []
    for path in (root, *root.rglob("*")):
        mode = path.lstat().st_mode & 0o777
        wanted = 0o700 if path.is_dir() else 0o600
        if mode != wanted and not path.is_symlink():
            wrong.append(f"{path.relative_to(root)} {mode:o}")
    return wrong


def run_a_node(data: Path) -> set[str]:
    """Let a node and its worker write every kind of file; returns the names of files."""
    home = DataDirectory(data)
    home.identity()
    home.belong_to("a")
    home.keep_claim(Claim(1, "t"))
    home.keep_known(FLOWS, KnownNames(1, frozenset({"web"})))
    (data / "assignment.json").write_text("damaged")
    (data / "assignment.json").chmod(0o600)
    home.kept()
    store = JournalStore(data, "n1")
    keyring = Keyring({"${secret:k}": Key.parse("0a" * 32, "")})
    for flow, durability in (("web", "disk"), ("spill", "spill"), ("memory", "memory")):
        journal = store.take(flow, durability, None, keyring)  # type: ignore[arg-type]
        for first in range(0, 60, 20):
            journal.append(numbered_events(first, 20, 100), {"app.log": first})
        journal.sync()
        journal.trim(20)
        store.sources.noted(flow).note({"b.log": 1}, ())
        store.give_back(journal)
    store.close_all_but(frozenset())
    store.remove(next(name for name in store.journals if name.startswith("web.")))
    store.close()
    lone = Journal.create(data / "journals" / "0", ID, segment_bytes=4096)
    for first in range(0, 200, 20):
        lone.append(numbered_events(first, 20, 100))
    lone.close()
    segments = sorted((data / "journals" / "0" / ID).glob("*.segment"))
    segments[0].write_bytes(segments[0].read_bytes().replace(b".....", b"::::.", 1))
    with segments[-1].open("ab") as last:
        last.write(b"torn")
    repair(data / "journals" / "0" / ID, accept_loss=True)
    with RunningJobs(data).job(["web"]):
        names = {path.name for path in data.rglob("*")}
        assert open_to_others(data) == []
    home.close()
    return names


def test_node_and_worker_leave_nothing_open_for_any_umask(tmp_path: Path, umask: int) -> None:
    names = run_a_node(tmp_path / "new" / "data")
    assert {"quarantine", "state.json", "encryption.json", "spare", "checkpoint"} <= names
    assert {"assignment.json.damaged", "web.json", "claim.json", "jobs", "noted"} <= names
    assert any(name.endswith(".broken") for name in names)
    assert os.umask(umask) == umask, "the umask is the sinks' business"


@contextmanager
def user(number: int) -> Iterator[None]:
    before = os.geteuid()
    if before == 0:
        os.seteuid(number)
    try:
        yield
    finally:
        if before == 0:
            os.seteuid(before)


def test_directory_of_another_user_is_refused() -> None:
    """Its owner can open it again at any time."""
    with (
        user(65534),
        pytest.raises(UserError, match="data directory / belongs to root, and this process runs"),
    ):
        private_directory.make_private(Path("/"), [])


def test_open_files_are_closed_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only flumeng's own: a lake that somebody lets be written there stays as it is."""
    for name in ("journals/0/web", "collector", "lake/dt=1"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("journals/0/web/x.segment", "uuid", "lake/dt=1/part.parquet", "outside"):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(0o644)
    for path in (tmp_path, *tmp_path.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    (tmp_path / "journals" / "link").symlink_to(tmp_path / "outside")
    with caplog.at_level(logging.WARNING):
        DataDirectory(tmp_path).close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "was open to other users: 7 files and directories" in told
    assert open_to_others(tmp_path / "journals") == []
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "lake/dt=1/part.parquet").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "lake/dt=1").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o644
    caplog.clear()
    DataDirectory(tmp_path).close()
    assert caplog.records == []


def test_modes_of_journals_on_another_disk_are_corrected_there(tmp_path: Path) -> None:
    (tmp_path / "disk" / "0").mkdir(parents=True)
    (tmp_path / "disk" / "0").chmod(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "journals").symlink_to(tmp_path / "disk")
    DataDirectory(tmp_path / "data").close()
    assert (tmp_path / "disk" / "0").stat().st_mode & 0o777 == 0o700


def test_crash_leaves_no_core_dump_of_a_process_or_its_children(tmp_path: Path) -> None:
    """Secrets and events are in its memory."""
    dies = "import os; os.abort()"
    code = (
        "import resource, subprocess, sys\n"
        "hard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
        "if sys.argv[1:]:\n"
        "    from flumeng.platform import processes\n"
        "    processes.forbid_core_dumps()\n"
        f"child = subprocess.Popen([sys.executable, '-c', {dies!r}])\n"
        "import os\n"
        "_, status = os.waitpid(child.pid, 0)\n"
        "print(os.WCOREDUMP(status), len(os.listdir('/proc/self/fd')) > 2)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, "forbidden"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["False", "True"]
    assert list(tmp_path.iterdir()) == []
