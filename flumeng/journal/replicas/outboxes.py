"""Messages still to be sent to the copies on one node.

The outboxes of its journals take turns; adjoining frames become one message. Copies that catch up
have a queue of their own, since they are throttled; the two queues take turns.
"""

from __future__ import annotations

from collections import OrderedDict

from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.replication.messages import Begin, Frames, Reset, ToCopy


class Outbox:
    """The messages of one journal: a beginning, then frames."""

    def __init__(self, journal: ReplicatedJournal) -> None:
        self.journal = journal
        self.first: Begin | Reset | None = None
        self.frames: Frames | None = None

    def put(self, message: ToCopy) -> None:
        if not isinstance(message, Frames):
            self.first = message
            self.frames = None if isinstance(message, Begin) else self.frames
            return
        before = self.frames
        if before is not None and before.term == message.term and before.end >= message.start:
            message = message._replace(
                start=min(before.start, message.start), end=max(before.end, message.end)
            )
        self.frames = message


class Outboxes:
    """For one thread at a time."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._prompt: OrderedDict[str, Outbox] = OrderedDict()
        self._catching_up: OrderedDict[str, Outbox] = OrderedDict()
        self._their_turn = False

    @property
    def any_catching_up(self) -> bool:
        return bool(self._catching_up)

    def put(self, journal: ReplicatedJournal, message: ToCopy) -> None:
        name = journal.id
        waits = isinstance(message, Frames) and journal.is_catching_up(self._node)
        outbox = self._prompt.get(name)
        if outbox is None and waits:
            outbox = self._catching_up.setdefault(name, Outbox(journal))
        elif outbox is None:
            outbox = self._prompt[name] = self._catching_up.pop(name, Outbox(journal))
        outbox.put(message)

    def next(self, *, also_catching_up: bool) -> Outbox | None:
        """Removes the next one."""
        lines = [self._prompt, self._catching_up] if also_catching_up else [self._prompt]
        for line in lines[::-1] if self._their_turn else lines:
            if line:
                self._their_turn = line is self._prompt
                return line.popitem(last=False)[1]
        return None

    def forget(self, journal: str) -> None:
        self._prompt.pop(journal, None)
        self._catching_up.pop(journal, None)

    def clear(self) -> None:
        self._prompt.clear()
        self._catching_up.clear()
