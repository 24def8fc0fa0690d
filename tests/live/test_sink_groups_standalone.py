"""A group of files as a user has it, whose first directory goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.one_host import FLOW, Standalone
from tests.testkit.waiting import wait_for
from zkschema import paths

ONE = 'sinks: [{{files: {{path: "{lake}/dt=%Y-%m-%d"}}}}]'
GROUP = """\
sinks:
  - first_of:
      sinks:
        - files: {{path: "{lake}/dt=%Y-%m-%d"}}
        - files: {{path: "{spare}/dt=%Y-%m-%d"}}
      backoff_seconds: 0.5
      max_backoff_seconds: 1
"""


@pytest.fixture
def standalone(standalone_of_all: Standalone, tmp_path: Path) -> Iterator[Standalone]:
    standalone = Standalone(tmp_path)
    text, one = standalone.flow.read_text(), ONE.format(lake=standalone.lake)
    assert one in text
    group = GROUP.format(lake=standalone.lake, spare=tmp_path / "spare")
    standalone.flow.write_text(text.replace(one, group))
    standalone.join(standalone_of_all)
    yield standalone
    standalone.leave()


@pytest.mark.long
def test_each_event_shows_once_while_the_first_directory_is_away(
    standalone: Standalone, tmp_path: Path
) -> None:
    lake, aside, spare = standalone.lake, tmp_path / "unmounted", tmp_path / "spare"

    def spared() -> int:
        files = [str(file) for file in spare.glob("dt=*/*.parquet")]
        return int(ds.dataset(files).count_rows()) if files else 0

    standalone.send(100)
    wait_for(lambda: standalone.rows() == 100, "the events did not reach the lake")
    with closing(connect(standalone.hosts)) as store:
        wait_for(lambda: not store.children(paths.commits(FLOW)), "the batch is not finished")
    lake.rename(aside)
    lake.write_text("no directory")
    standalone.send(100)
    wait_for(lambda: spared() == 100, "the second member does not take events")
    left = "sinks[0].first_of: failed when last tried: [0] files"
    wait_for(lambda: left in standalone.command("task", "list"), "nobody says so")
    standalone.command("task", "restart", "web/collect.0")
    standalone.send(100)
    wait_for(lambda: spared() == 200, "whoever claims the task needs the first directory")
    lake.unlink()
    aside.rename(lake)
    sent = 300

    def taken_again() -> bool:
        nonlocal sent
        standalone.send(10)
        sent += 10
        return standalone.rows() > 100

    wait_for(taken_again, "the first member does not come back")
    wait_for(lambda: standalone.rows() + spared() >= sent, "events are missing")
    assert standalone.rows() + spared() == sent
    assert list(spare.glob("_flumeng/*")) == []
    wait_for(lambda: left not in standalone.command("task", "list"), "it still says so")
