"""Current texts of flows whose encryption keys a leading copy needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from flumeng.agent.node.pace import Pace
from flumeng.control.zookeeper import Store, Versioned
from zkschema import paths
from zkschema.records import Revision
from zkschema.table import NAME

Trusts = Callable[[str, Revision], bool]


class CurrentTexts:
    """``trusts`` says whether this node may act on a flow's revision."""

    def __init__(
        self, store: Store, trusts: Trusts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._trusts = store, trusts
        self._pace = Pace(clock)
        self._texts: dict[str, tuple[int, str]] = {}

    def of(self, flows: Collection[str]) -> Mapping[str, str]:
        """The text of each flow's current revision, without those that are unreadable or untrusted.
        Polled less often while unchanged. Raises UnavailableError."""
        wanted = sorted(flow for flow in flows if NAME.fullmatch(flow))
        self._texts = {flow: known for flow, known in self._texts.items() if flow in wanted}
        due = self._pace.due(wanted)
        found = self._store.read_each([paths.flow(flow) for flow in due])
        for flow, record in zip(due, found, strict=True):
            number = record.value.revision if isinstance(record, Versioned) else None
            if number is not None and self._texts.get(flow, (None, ""))[0] != number:
                self._read(flow, number)
            self._pace.saw(flow, number)
        return {flow: text for flow, (_, text) in self._texts.items()}

    def _read(self, flow: str, number: int) -> None:
        (revision,) = self._store.read_each([paths.revision(flow, str(number))])
        if isinstance(revision, Versioned) and self._trusts(flow, revision.value):
            self._texts[flow] = number, revision.value.effective
