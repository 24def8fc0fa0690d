"""Which branches of a flow each event takes.

Events are marked once, where a flow branches; the first stage of a branch drops the marks.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from flumeng.config.branch import Branch
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.marks import Marked, Marks, TakeStage, Unmarked

MARK = "_flumeng_branch_"


class BranchRouter:
    """Of the ``branches`` of one segment. An event may take several branches, or none."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self._branches = branches
        self._marks = Marks(
            {
                f"{MARK}{number}": branch.when
                for number, branch in enumerate(branches)
                if branch.when is not None
            }
        )

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(self._marks.conditions)

    def mark(self, batch: LazyBatch) -> LazyBatch:
        """``batch`` with a column for each condition."""
        return self._marks.mark(batch)

    def all_of(self, marked: LazyBatch) -> LazyBatch:
        """All events, as they were before they were marked."""
        return self._taken(marked, None)

    def branch_of(self, marked: LazyBatch, number: int) -> LazyBatch:
        """The events of one branch."""
        branch = self._branches[number]
        if branch.otherwise:
            return self._taken(marked, Unmarked(self.marks))
        return self._taken(marked, None if branch.when is None else Marked(f"{MARK}{number}"))

    def _taken(self, marked: LazyBatch, which: Marked | Unmarked | None) -> LazyBatch:
        if not self.marks:
            return marked
        schema = pa.schema([f for f in marked.schema if f.name not in self.marks])
        return marked.arrow(TakeStage(which, tuple(schema.names)), schema)
