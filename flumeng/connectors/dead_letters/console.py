"""The console's use of connectors; see ``flumeng.console.console.Connectors``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flumeng.connectors.dead_letters.commands import plan_purge, plan_replay
from flumeng.connectors.dead_letters.of_flow import FlowDeadLetters
from flumeng.connectors.dead_letters.selection import Selection, moment
from flumeng.connectors.dead_letters.summary import newest, summarize
from flumeng.connectors.sites import remote_columns
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ReadableStore, Store

Json = Mapping[str, Any]


class ConsoleConnectors:
    """Reads dead letters, and asks other sites, from this process."""

    def check_columns(self, store: Store, text: str) -> str:
        return remote_columns.check(store, text)

    def kinds(self, store: ReadableStore, flow: str) -> Json:
        letters = FlowDeadLetters.open(store, flow)
        return letters.as_json(
            summarize(letters.directory, letters.files, Selection(), letters.replays)
        )

    def newest(self, store: ReadableStore, flow: str, most: int, reason: str) -> Sequence[str]:
        letters = FlowDeadLetters.open(store, flow)
        texts, _ = newest(letters.directory, letters.files, Selection(reason=reason), most)
        return [text.decode("utf-8", "replace") for text in texts]

    def replay(
        self, operator: Operator, flow: str, choice: Json
    ) -> tuple[Json, Callable[[], None]]:
        planned = plan_replay(
            operator.store,
            flow,
            _selection(choice),
            own_name=choice.get("as"),
            again=bool(choice.get("again")),
        )
        listed = planned.listed
        planned.start(operator, listed)
        return planned.document, lambda: planned.write(listed)

    def purge(self, operator: Operator, flow: str, choice: Json) -> tuple[Json, Callable[[], None]]:
        planned = plan_purge(
            operator.store, flow, _selection(choice), replayed=bool(choice.get("replayed"))
        )
        if planned.counted.letters:
            planned.note(operator)
        return planned.document, lambda: void(planned.delete())


def void(_value: object) -> None:
    """Discard a value."""


def _selection(choice: Json) -> Selection:
    return Selection(
        reason=choice.get("dead_reason", ""),
        place=choice.get("place", ""),
        revision=choice.get("revision"),
        since=moment("since", choice.get("since", "")),
        until=moment("until", choice.get("until", "")),
    )
