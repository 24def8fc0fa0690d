"""The console's use of connectors; see ``flumeng.console.console``.

Libraries are loaded when first used: the console's memory is small until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ReadableStore, Store

if TYPE_CHECKING:
    from flumeng.connectors.dead_letters.selection import Selection

Json = Mapping[str, Any]


class ConsoleConnectors:
    """Reads dead letters, and asks other sites, from this process."""

    def check_columns(self, store: Store, text: str) -> str:
        from flumeng.connectors.sites import remote_columns  # noqa: PLC0415  loads pyarrow

        return remote_columns.check(store, text)

    def kinds(self, store: ReadableStore, flow: str) -> Json:
        from flumeng.connectors.dead_letters.of_flow import FlowDeadLetters  # noqa: PLC0415  loads pyarrow
        from flumeng.connectors.dead_letters.selection import Selection  # noqa: PLC0415  loads pyarrow
        from flumeng.connectors.dead_letters.summary import summarize  # noqa: PLC0415  loads pyarrow

        letters = FlowDeadLetters.open(store, flow)
        return letters.as_json(
            summarize(letters.directory, letters.files, Selection(), letters.replays)
        )

    def newest(self, store: ReadableStore, flow: str, most: int, reason: str) -> Sequence[str]:
        from flumeng.connectors.dead_letters import summary  # noqa: PLC0415  loads pyarrow
        from flumeng.connectors.dead_letters.of_flow import FlowDeadLetters  # noqa: PLC0415  loads pyarrow
        from flumeng.connectors.dead_letters.selection import Selection  # noqa: PLC0415  loads pyarrow

        letters = FlowDeadLetters.open(store, flow)
        texts, _ = summary.newest(letters.directory, letters.files, Selection(reason=reason), most)
        return [text.decode("utf-8", "replace") for text in texts]

    def replay(
        self, operator: Operator, flow: str, choice: Json
    ) -> tuple[Json, Callable[[], None]]:
        from flumeng.connectors.dead_letters.commands import plan_replay  # noqa: PLC0415  loads pyarrow

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
        from flumeng.connectors.dead_letters.commands import plan_purge  # noqa: PLC0415  loads pyarrow

        planned = plan_purge(
            operator.store, flow, _selection(choice), replayed=bool(choice.get("replayed"))
        )
        if planned.counted.letters:
            planned.note(operator)
        return planned.document, lambda: void(planned.delete())


def void(_value: object) -> None:
    """Discard a value."""


def _selection(choice: Json) -> Selection:
    from flumeng.connectors.dead_letters.selection import Selection, moment  # noqa: PLC0415  loads pyarrow

    return Selection(
        reason=choice.get("dead_reason", ""),
        place=choice.get("place", ""),
        revision=choice.get("revision"),
        since=moment("since", choice.get("since", "")),
        until=moment("until", choice.get("until", "")),
    )
