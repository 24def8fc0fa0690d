"""What lies in a data directory is for its user alone, whatever the umask and whoever made it."""

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
from flumeng.agent.node.home import FLOWS, Home, KnownNames
from flumeng.agent.node.in_progress import InProgress
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
    """Everything with another mode than 0700 and 0600."""
    wrong = []
    for path in (root, *root.rglob("*")):
        mode = path.lstat().st_mode & 0o777
        wanted = 0o700 if path.is_dir() else 0o600
        if mode != wanted and not path.is_symlink():
            wrong.append(f"{path.relative_to(root)} {mode:o}")
    return wrong


def run_a_node(data: Path) -> set[str]:
    """Let everything that a node and its worker write come to be; gives the names of files."""
    home = Home(data)
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
    with InProgress(data).job(["web"]):
        names = {path.name for path in data.rglob("*")}
        assert open_to_others(data) == []
    home.close()
    return names


def test_a_node_and_its_worker_leave_nothing_open_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
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


def test_a_directory_of_somebody_else_is_refused() -> None:
    """Who owns it can open it again at any time."""
    with (
        user(65534),
        pytest.raises(UserError, match="data directory / belongs to root, and this process runs"),
    ):
        private_directory.make_private(Path("/"), [])


def test_what_is_open_already_is_closed_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what is flumeng's: a lake that somebody lets be written there stays as it is."""
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
        Home(tmp_path).close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "was open to other users: 7 files and directories" in told
    assert open_to_others(tmp_path / "journals") == []
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "lake/dt=1/part.parquet").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "lake/dt=1").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o644
    caplog.clear()
    Home(tmp_path).close()
    assert caplog.records == []


def test_journals_on_another_disk_are_closed_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "disk" / "0").mkdir(parents=True)
    (tmp_path / "disk" / "0").chmod(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "journals").symlink_to(tmp_path / "disk")
    Home(tmp_path / "data").close()
    assert (tmp_path / "disk" / "0").stat().st_mode & 0o777 == 0o700


def test_a_crash_leaves_no_core_of_a_process_or_of_what_it_starts(tmp_path: Path) -> None:
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
