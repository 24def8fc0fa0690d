"""Writes the machine's event log into ZooKeeper, where it outlives the node: at most every
``TELL_SECONDS``, the last ``LINES`` entries, or fewer if the znode is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flumeng.agent.node.events import Step
from flumeng.control.zookeeper import ABSENT, Store, Versioned
from zkschema import codec, paths
from zkschema.records import Story, StoryLine

TELL_SECONDS = 3.0
LINES = 50
CAUSE_CHARACTERS = 200


class EventPublisher:
    """Publishes a node's steps. ``clock``: that of the machine; ``wall``: seconds since 1970."""

    def __init__(
        self, store: Store, node: str, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._store = store
        self._path = paths.story(node)
        self._clock = clock
        self._epoch_seconds = wall() - clock()
        self._published = -1
        self._next = 0.0

    def tell(self, steps: Iterable[Step], *, at_once: bool = False) -> None:
        """Write new entries when due or ``at_once``; a later call repeats a failed write."""
        fresh = [step for step in steps if step.number > self._published]
        if not fresh or (self._clock() < self._next and not at_once):
            return
        self._next = self._clock() + TELL_SECONDS
        (record,) = self._store.read_each([self._path])
        written = record.value.lines if isinstance(record, Versioned) else ()
        lines = (self._line(step) for step in fresh)
        story = _bounded([*written, *(line for line in lines if line not in written)])
        self._store.write(self._path, story, record.version if record else ABSENT)
        self._published = fresh[-1].number

    def _line(self, step: Step) -> StoryLine:
        return StoryLine(
            time=self._epoch_seconds + step.seconds,
            who=step.who,
            event=step.event,
            before=step.before,
            after=step.after,
            cause=step.cause[:CAUSE_CHARACTERS],
        )


def _bounded(lines: list[StoryLine]) -> Story:
    kept = tuple(lines[-LINES:])
    while len(codec.encode(Story(lines=kept))) > paths.story.size_bytes:
        kept = kept[1:]
    return Story(lines=kept)
