"""Dead letters are kept within the limits of their flow: the oldest files go, and nothing else."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from flumeng.agent.collector.dead_letter_limits import EVERY_SECONDS, DeadLetterLimits
from flumeng.agent.collector.measures import Measures
from flumeng.config import SpecError, check_flow
from flumeng.config.component import Keep
from flumeng.connectors.dead_letters.directory import DeadLetterFile
from flumeng.connectors.dead_letters.purging import DAY_SECONDS, MOST_FILES, outdated
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.platform.errors import UserError
from flumeng.platform.metrics import table
from tests.testkit.cluster import new_cluster
from tests.testkit.collector import ScriptedPipeline
from tests.testkit.command_line import Shell
from zkschema import paths

NOW = 100 * DAY_SECONDS
MIB = 2**20
LETTER = (
    '{"body":"x","dead_reason":"r","dead_place":"p","dead_revision":1,'
    '"dead_time":"2026-11-22T12:00:00Z"}\n'
)


def file(name: str, days: float, size: int = 10) -> DeadLetterFile:
    return DeadLetterFile(f"/dead/{name}", name, size, NOW - days * DAY_SECONDS)


def names(files: list[DeadLetterFile]) -> list[str]:
    return [one.name for one in files]


def test_old_files_go_and_then_the_oldest_until_the_rest_fits() -> None:
    files = [file("a", 1, 4 * MIB), file("b", 40, MIB), file("c", 20, 3 * MIB), file("d", 31)]
    assert names(outdated(files, Keep(days=30), NOW)) == ["b", "d"]
    assert names(outdated(files, Keep(bytes=7 * MIB), NOW)) == ["b", "d"]
    assert names(outdated(files, Keep(bytes=4 * MIB), NOW)) == ["b", "d", "c"]
    assert names(outdated(files, Keep(days=30, bytes=4 * MIB), NOW)) == ["b", "d", "c"]
    assert names(outdated(files, Keep(days=50, bytes=9 * MIB), NOW)) == []
    assert names(outdated(files, Keep(bytes=MIB), NOW)) == ["b", "d", "c", "a"]


def test_files_that_a_replay_has_to_read_stay() -> None:
    files = [file("a", 40, 2 * MIB), file("b", 35, 2 * MIB), file("c", 1, 2 * MIB)]
    assert names(outdated(files, Keep(days=30), NOW, needed={"a"})) == ["b"]
    assert names(outdated(files, Keep(bytes=4 * MIB), NOW, needed={"a"})) == ["b"]


def test_number_of_files_deleted_at_once_is_bounded() -> None:
    files = [file(f"{n:06}", 40) for n in range(MOST_FILES + 5)]
    assert len(outdated(files, Keep(days=1), NOW)) == MOST_FILES


class Flow:
    def __init__(self, folder: Path) -> None:
        self.root = folder / "dead"
        self.root.mkdir()
        self.store = new_cluster()
        text = f"""
flow: web
sources: [tail: {{paths: [/a]}}]
sinks: [noop]
dead_letters: {{files: {{path: {self.root}, format: json}}, keep: {{days: 30}}}}
"""
        apply_flow(Operator(self.store, "", "", 0.0), text)
        self.spec = check_flow(text)
        self.measures = Measures()
        self.limits = DeadLetterLimits(self.store, self.measures, lambda: NOW)

    def bury(self, days: float) -> Path:
        path = self.root / f"part-{uuid.uuid4().hex}.json"
        path.write_text(LETTER)
        os.utime(path, (NOW - days * DAY_SECONDS,) * 2)
        return path

    def left(self) -> set[Path]:
        return set(self.root.glob("part-*"))


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return Flow(tmp_path)


def test_limits_of_a_flow_are_enforced_while_a_task_runs_it(flow: Flow) -> None:
    old, young = flow.bury(31), flow.bury(29)
    other = flow.root / "notes.json"
    other.write_text(LETTER)
    os.utime(other, (0, 0))
    flow.limits.turn()
    assert old.exists(), "nobody runs it"
    running = ScriptedPipeline(flow.spec)
    flow.limits.watch(running)
    flow.limits.turn()
    assert (flow.left(), other.exists()) == ({young}, True)
    again = flow.bury(31)
    flow.limits.turn()
    assert again.exists(), "once an hour"
    flow.limits.turn(every_seconds=0.0)
    assert flow.left() == {young}
    assert EVERY_SECONDS == 3600.0
    readings = {reading.metric: reading.value for reading in flow.measures.readings()}
    assert readings[table.COLLECT_LETTER_FILES_DELETED] == 2
    flow.bury(31)
    del running
    flow.limits.turn()
    assert len(flow.left()) == 2


def test_a_replay_that_has_not_ended_keeps_its_files(flow: Flow) -> None:
    listed = flow.bury(31)
    done = Shell(flow.store.tree).run("flow", "dead", "replay", "web")
    assert done.exit_code == 0, done.stderr
    later = flow.bury(31)
    assert flow.limits.apply(flow.spec) == 1
    assert flow.left() == {listed}
    assert not later.exists()
    replay = flow.store.read(paths.revision("web-replay-1", "1"))
    assert replay is not None
    with pytest.raises(UserError, match="name that flow"):
        flow.limits.apply(check_flow(replay.value.text))


@pytest.mark.parametrize(
    ("letters", "complaint"),
    [
        ("files: {path: /d}, keep: {}", "expected days, bytes or both"),
        ("files: {path: /d}, keep: {days: 0}", "dead_letters.keep.days"),
        ("files: {path: /d, format: csv}, keep: {days: 3}", "expected a sink files in parquet"),
        ("files: {path: /d, columns: flat}, keep: {days: 3}", "expected a sink files in parquet"),
        ("noop: {}, keep: {days: 3}", "expected a sink files in parquet"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(letters: str, complaint: str) -> None:
    text = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
    with pytest.raises(SpecError, match=complaint):
        check_flow(f"{text}dead_letters: {{{letters}}}\n")
    check_flow(f"{text}dead_letters: {{files: {{path: /d}}, keep: {{days: 30, bytes: 10 GiB}}}}\n")
