"""The contract of an input that is read in ranges."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from flumeng.config import registry
from flumeng.connectors.api import RangedInput
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.ranged.runtime import RangedReader, name_and_incarnation, partition_name
from flumeng_testkit.component import ComponentContract


class RangedInputContract(ComponentContract):
    kind: ClassVar[Literal["source"]] = "source"

    def fill(self, folder: Path, events: int) -> None:
        """Add this number of events to the source that the options of ``folder`` read. Called
        several times in a test. Use realistic partition names, with spaces if these may occur."""
        raise NotImplementedError

    def test_it_is_a_ranged_input_of_its_name(self) -> None:
        kind = registry.get("source", self.name).implementation_class()
        assert issubclass(kind, RangedInput)
        assert kind.name == self.name
        assert registry.get("source", self.name).options_class().placing.fget is not None

    def test_all_events_are_read_once(self, tmp_path: Path) -> None:
        self.fill(tmp_path, 100)
        source = self._source(tmp_path)
        ends = source.ends(list(source.list()))
        assert (
            sum(self._read(tmp_path, name, e.first, e.end).num_rows for name, e in ends.items())
            == 100
        )

    def test_range_that_is_read_again_is_the_same(self, tmp_path: Path) -> None:
        self.fill(tmp_path, 50)
        source = self._source(tmp_path)
        for name, ends in source.ends(list(source.list())).items():
            once = self._read(tmp_path, name, ends.first, ends.end)
            self.fill(tmp_path, 10)
            again = self._read(tmp_path, name, ends.first, ends.end)
            assert once.drop_columns(["ts"]).equals(again.drop_columns(["ts"]))

    def test_range_is_exact_wherever_it_is_cut(self, tmp_path: Path) -> None:
        self.fill(tmp_path, 30)
        source = self._source(tmp_path)
        for name, ends in source.ends(list(source.list())).items():
            whole = self._read(tmp_path, name, ends.first, ends.end).drop_columns(["ts"])
            for cut in range(ends.first, ends.end + 1, 7):
                parts = [
                    self._read(tmp_path, name, ends.first, cut).drop_columns(["ts"]),
                    self._read(tmp_path, name, cut, ends.end).drop_columns(["ts"]),
                ]
                assert pa.concat_tables(parts).equals(whole)

    def test_new_events_raise_the_end_and_nothing_else(self, tmp_path: Path) -> None:
        self.fill(tmp_path, 5)
        source = self._source(tmp_path)
        listed = source.list()
        before = source.ends(list(listed))
        self.fill(tmp_path, 5)
        assert {**source.list(), **listed} == source.list(), (
            "an existing partition has a new incarnation"
        )
        for name, ends in source.ends(list(before)).items():
            assert ends.end >= before[name].end
            assert ends.first == before[name].first

    def test_names_fit_into_zookeeper(self, tmp_path: Path) -> None:
        self.fill(tmp_path, 1)
        for name, incarnation in self._source(tmp_path).list().items():
            full = partition_name(self.name, name, incarnation)
            assert name_and_incarnation(full) == (name, incarnation)

    def test_reader_is_pickled(self, tmp_path: Path) -> None:
        pickle.loads(pickle.dumps(self._reader(tmp_path)))

    def _source(self, folder: Path) -> RangedInput:
        made: RangedInput = registry.get("source", self.name).implementation_class()(
            self.made(folder)
        )
        return made

    def _reader(self, folder: Path) -> RangedReader:
        kind: Any = registry.get("source", self.name).implementation_class()
        return RangedReader(kind, self.made(folder))

    def _read(self, folder: Path, name: str, start: int, end: int) -> pa.Table:
        """Return the events of a range as an executor reads and checks them."""
        reader = self._reader(folder)
        incarnation = self._source(folder).list()[name]
        piece = Range(partition_name(self.name, name, incarnation), start, end)
        batches = list(reader.read(piece, "")) if end > start else []
        assert all(batch.num_rows for batch in batches)
        return pa.Table.from_batches(batches, reader.schema)
