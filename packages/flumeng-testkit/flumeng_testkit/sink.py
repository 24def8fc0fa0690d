"""The contract of a sink whose stage is in Arrow."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

import pytest

from flumeng.config import registry
from flumeng.connectors.api import Attempt, BatchId, TaskRevision
from flumeng_testkit import events as made_up
from flumeng_testkit.component import ComponentContract

TASK = TaskRevision("contract", "collect.0", 1)


class SinkContract(ComponentContract):
    kind: ClassVar[Literal["sink"]] = "sink"

    def written(self, options: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
        """Return journal and number of each event in the target, once for each copy of it."""
        raise NotImplementedError

    def test_every_event_is_written(self, tmp_path: Path) -> None:
        options, sink = self._sink(tmp_path)
        assert self._write(sink, 1, first=0) == 40
        assert sorted(map(tuple, self.written(options))) == _ids(0, 40)

    def test_batches_follow_one_another(self, tmp_path: Path) -> None:
        options, sink = self._sink(tmp_path)
        for number in (1, 2, 3):
            self._write(sink, number, first=40 * (number - 1))
        assert sorted(map(tuple, self.written(options))) == _ids(0, 120)

    def test_repeated_batch_leaves_one(self, tmp_path: Path) -> None:
        """After a crash a batch is written again: under its number, with the same events."""
        options, sink = self._sink(tmp_path)
        self._require(sink)
        for _ in range(3):
            self._write(sink, 1, first=0)
        _, another = self._sink(tmp_path)
        self._write(another, 1, first=0)
        assert sorted(map(tuple, self.written(options))) == _ids(0, 40)

    def test_batch_that_failed_in_the_middle_is_completed(self, tmp_path: Path) -> None:
        """Some splits of a batch are written, then the collector dies, and all are repeated."""
        options, sink = self._sink(tmp_path)
        self._require(sink)
        self._write(sink, 1, first=0, splits=(1,), commit=False)
        self._write(sink, 1, first=0)
        assert sorted(map(tuple, self.written(options))) == _ids(0, 40)

    def test_another_series_has_numbers_of_its_own(self, tmp_path: Path) -> None:
        """A flow that was deleted and recreated counts from the beginning."""
        options, sink = self._sink(tmp_path)
        self._require(sink)
        self._write(sink, 5, first=0)
        self._write(sink, 1, first=40, series="another")
        assert sorted(map(tuple, self.written(options))) == _ids(0, 80)

    def test_batch_without_events_is_none(self, tmp_path: Path) -> None:
        _, sink = self._sink(tmp_path)
        assert self._write(sink, 1, first=0, events=0) == 0

    def test_stage_is_pickled(self, tmp_path: Path) -> None:
        _, sink = self._sink(tmp_path)
        for stage in sink.stage(made_up.batch(identified=True), Attempt()).pending:
            pickle.loads(pickle.dumps(stage))

    def _sink(self, folder: Path) -> tuple[Mapping[str, Any], Any]:
        options = self.options(folder)
        return options, registry.get("sink", self.name).implementation_class()(
            self.made(folder), TASK
        )

    def _require(self, sink: Any) -> None:
        options = registry.get("sink", self.name).options_class()
        if options.exactly_once not in ("by batch", "by event"):
            pytest.skip(f"{self.name} does not promise exactly once by batch or by event")
        del sink

    def _write(
        self,
        sink: Any,
        number: int,
        *,
        first: int,
        events: int = 40,
        splits: Iterable[int] = (0, 1),
        series: str = "contract",
        commit: bool = True,
    ) -> int:
        """Write a batch of two splits as a collector does; return the sink's count of events."""
        batch = BatchId(series, number)
        attempt = Attempt(
            staging={root: mkdtemp(dir=_directory(root)) for root in sink.roots},
            batch=batch if sink.writes_at_once else None,
            exactly_once=True,
        )
        stages = sink.stage(made_up.batch(identified=sink.identified), attempt)
        rows = []
        for split in splits:
            numbers = range(first + split, first + events, 2)
            given = [made_up.events([b"event %d" % n], n) for n in numbers]
            if sink.identified:
                given = [made_up.identified(event, split) for event in given]
            for out in made_up.run(stages, [given]):
                rows += out.to_pylist()
        done = sink.written(rows)
        if commit:
            for source, target in done.files:
                os.renames(_path(source), _path(target))
            if done.commit is not None:
                done.commit(batch)
        return int(done.events)


def _path(uri: str) -> Path:
    """Return the path of a URI. Raises AssertionError for a scheme other than ``file``."""
    parts = urlsplit(uri)
    assert parts.scheme in ("", "file"), f"{uri}: the tests need local directories"
    return Path(unquote(parts.path))


def _directory(root: str) -> Path:
    path = _path(root)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _ids(first: int, end: int) -> list[tuple[str, int]]:
    return [(made_up.JOURNAL, number) for number in range(first, end)]
