"""The contract of a filter whose stages are in Arrow."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from flumeng.config import registry
from flumeng.config.column_kinds import EVENT
from flumeng_testkit import events as made_up
from flumeng_testkit.component import ComponentContract

BODIES = [b"", b"plain", b"42 of 7", "\u00fc\u2028".encode(), b"\xff\x00", b"x" * 100_000]


class FilterContract(ComponentContract):
    kind: ClassVar[Literal["filter"]] = "filter"

    def bodies(self) -> list[bytes]:
        """Return bodies for the tests; the first ones should be typical input of the filter."""
        return BODIES

    def applied(self, folder: Path) -> Any:
        options = self.made(folder)
        implementation = registry.get("filter", self.name).implementation_class()
        return implementation(options).apply(made_up.batch(identified=True))

    def test_columns_are_those_that_the_options_say(self, tmp_path: Path) -> None:
        expected = self.made(tmp_path).behind(EVENT)
        given = set(self.applied(tmp_path).schema.names) - {"__journal", "__seq", "__split"}
        assert given == set(expected)

    def test_batches_have_the_schema_that_was_said(self, tmp_path: Path) -> None:
        applied = self.applied(tmp_path)
        for out in self._run(applied, self.bodies()):
            assert out.schema.names == applied.schema.names
            assert out.schema.types == applied.schema.types

    def test_each_event_keeps_its_identity(self, tmp_path: Path) -> None:
        """Acks and exactly-once delivery need the identity columns."""
        for out in self._run(self.applied(tmp_path), self.bodies()):
            assert {*out.column("__journal").to_pylist()} <= {made_up.JOURNAL}
            assert {*out.column("__seq").to_pylist()} <= {*range(len(self.bodies()))}

    def test_repeated_batch_gives_the_same(self, tmp_path: Path) -> None:
        """A batch is repeated exactly after a crash."""
        applied = self.applied(tmp_path)
        assert self._rows(applied, self.bodies()) == self._rows(applied, self.bodies())

    def test_batch_without_events_gives_none(self, tmp_path: Path) -> None:
        assert sum(out.num_rows for out in self._run(self.applied(tmp_path), [])) == 0

    def test_events_one_by_one_give_the_same_as_together(self, tmp_path: Path) -> None:
        """The batch boundaries must not matter, except to a filter that ``regroups``."""
        options = self.made(tmp_path)
        if options.regroups:
            return
        applied = self.applied(tmp_path)
        each = [
            row
            for number, body in enumerate(self.bodies())
            for row in self._rows(applied, [body], first=number)
        ]
        assert each == self._rows(applied, self.bodies())

    def test_stages_are_pickled(self, tmp_path: Path) -> None:
        """Executors receive pickled stages."""
        for stage in self.applied(tmp_path).pending:
            pickle.loads(pickle.dumps(stage))

    def _run(self, applied: Any, bodies: list[bytes], first: int = 0) -> list[pa.RecordBatch]:
        given = made_up.identified(made_up.events(bodies, first)) if bodies else None
        return made_up.run(applied, [[] if given is None else [given]])

    def _rows(self, applied: Any, bodies: list[bytes], first: int = 0) -> list[dict[str, Any]]:
        return [row for out in self._run(applied, bodies, first) for row in out.to_pylist()]
