"""Whichever process is killed, each line is in every place that it belongs to, once.

There are three branches, of which one is isolated and has a sink that is down all the while, dead
letters, and a flow that reads the flow. Processes are killed for ``FLUMENG_CHAOS_SECONDS`` at
least.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from flumeng.control.commands.flows import apply_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import (
    CHUNK,
    KINDS,
    PACE_SECONDS,
    Cluster,
    chaos_seconds,
    chaos_seed,
    kill_at_random,
    numbers,
    write_rotating,
)
from tests.testkit.files import files_below
from tests.testkit.waiting import wait_while_changing

BY_TEN = r"file=(?P<n>\d*[1-9]) "
"""Lines with a number divisible by ten have none, and become dead letters."""
TEXT = """
flow: chaos
sources: [{{tail: {{paths: ["{folder}/logs/app.log*"]}}}}]
delivery: exactly-once
batch: {{seconds: 0.3, events: 50000}}
filters:
  - parse: {{format: regex, pattern: '{pattern}'}}
    on_error: dead-letter
branches:
  - name: odd
    when: "CAST(n AS INT) % 2 = 1"
    sinks: [{{files: {{path: "{folder}/lake/odd"}}}}]
  - name: threes
    when: "CAST(n AS INT) % 3 = 0"
    isolated: true
    sinks: [{{files: {{path: "{folder}/away/threes"}}}}]
  - name: rest
    otherwise: true
    sinks: [{{files: {{path: "{folder}/lake/rest"}}}}]
dead_letters: {{files: {{path: "{folder}/lake/dead"}}}}
"""
READER = """
flow: copy
sources: [{{flow: {{name: chaos, discovery_seconds: 1}}}}]
delivery: exactly-once
batch: {{seconds: 0.3}}
sinks: [{{files: {{path: "{folder}/lake/copy"}}}}]
"""
BELONGS: dict[str, Callable[[int], bool]] = {
    "lake/odd": lambda n: n % 10 != 0 and n % 2 == 1,
    "away/threes": lambda n: n % 10 != 0 and n % 3 == 0,
    "lake/rest": lambda n: n % 10 != 0 and n % 2 == 0 and n % 3 != 0,
    "lake/dead": lambda n: n % 10 == 0,
    "lake/copy": lambda _n: True,
}
QUIET_SECONDS = 180.0


@pytest.mark.long
def test_each_line_is_in_each_of_its_places_once(cluster: Cluster, tmp_path: Path) -> None:
    seed = chaos_seed()
    (tmp_path / "logs").mkdir()
    away = tmp_path / "away"
    away.write_text("no directory: this sink is down")
    store = connect(cluster.hosts)
    texts = {
        "chaos": TEXT.format(folder=tmp_path, pattern=BY_TEN),
        "copy": READER.format(folder=tmp_path),
    }
    list(apply_flows(Operator(store, "test", "", 0.0), texts))
    seconds = max(25.0, chaos_seconds())
    lines = round(seconds / (2 * PACE_SECONDS)) * CHUNK
    writer = threading.Thread(target=write_rotating, args=(tmp_path / "logs", lines), daemon=True)
    until = time.monotonic() + chaos_seconds()
    writer.start()
    kill_at_random(cluster, random.Random(seed), (*KINDS, "executor"), times=1, until=until)
    writer.join(timeout=60 + chaos_seconds())

    def there(place: str) -> list[int]:
        files = [str(f) for f in files_below(tmp_path / place, "*.parquet") if _shows(f)]
        bodies = ds.dataset(files).to_table(columns=["body"])["body"] if files else []
        found = numbers(bodies, "file") if files else []
        assert len(found) == len(set(found)), f"a line is twice in {place}"
        return sorted(found)

    def wait_for(place: str) -> None:
        wanted = [n for n in range(lines) if BELONGS[place](n)]
        wait_while_changing(
            lambda: there(place) == wanted,
            lambda: len(there(place)),
            f"of {len(wanted)} lines of {place}",
            seconds=QUIET_SECONDS,
        )

    others = [place for place in BELONGS if not place.startswith("away")]
    for place in others:
        wait_for(place)
    assert there("away/threes") == []
    away.unlink()
    for place in BELONGS:
        wait_for(place)
    store.close()


def _shows(file: Path) -> bool:
    """Whether the file is published, not only staged."""
    return "_flumeng" not in file.parts
