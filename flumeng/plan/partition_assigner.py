"""Which task of a flow reads which of its journals: each stays in the task that it is in, new ones
join the smallest. When tasks are added, as few journals as possible move to even the tasks out.

A task that gets a journal from another one needs a higher epoch than that one had, since the acks
refuse a lower one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from flumeng.plan.placement_index import ONE_MORE, in_order, partitions_of, size_rank
from flumeng.plan.plan_builder import ChangeSet, PlanBuilder
from zkschema.records import COLLECT, PlannedTask


class PartitionAssigner:
    """A flow's journals over its tasks as they are to be; tasks not wanted any more are ended.

    ``fresh`` are the tasks that were not planned before, in order, with what they are to read.
    ``shares`` has the journals of those tasks whose journals change, ``moved`` the journals that
    were taken from a task, which have no task in ``task_of``. ``FlowIndex.sizes`` is brought up to
    date at once.
    """

    def __init__(self, builder: PlanBuilder, tasks: int, changes: ChangeSet) -> None:
        self._builder = builder
        self._flow_index = builder.flow_index
        self._shares: dict[str, list[str]] = {}
        self._task_of: dict[str, str | None] = {}
        self._moved: set[str] = set()
        self.fresh: Mapping[str, tuple[str, ...]] = {}
        if not changes.everything:
            self._follow(changes.journals)
        elif builder.flow_index.sizes.ranks:
            fresh = self._resize(tasks)
            self._follow(_own_journals(builder))
            self.fresh = {name: tuple(sorted(self._shares.pop(name))) for name in fresh}
        else:
            self._deal(tasks)

    def changed(self) -> dict[str, PlannedTask]:
        """The tasks that were planned before and read other journals now."""
        found = {}
        for name in in_order(self._shares):
            task = self._builder.task(name)
            partitions = tuple(sorted(self._shares[name]))
            if task is not None and partitions != task.partitions:
                found[name] = self._with(name, task, partitions)
        return found

    def _with(self, name: str, task: PlannedTask, partitions: tuple[str, ...]) -> PlannedTask:
        builder = self._builder
        builder.why.append(f"{builder.flow.name}/{name} now reads {len(partitions)} journals")
        gained = set(partitions) - set(task.partitions)
        if task.node and (gained & self._moved or (gained and builder.flow.plan.sharing)):
            builder.epoch += 1
            return replace(task, partitions=partitions, epoch=builder.epoch)
        return replace(task, partitions=partitions)

    def _deal(self, tasks: int) -> None:
        """The journals of a flow that has no tasks yet."""
        snapshot = self._builder.snapshot
        drained = snapshot.drained
        own = snapshot.journals_of(self._builder.flow.name)
        journals = sorted(name for name in own if name not in drained) if drained else sorted(own)
        self.fresh = {name: tuple(journals[n::tasks]) for n, name in enumerate(_names(tasks))}
        self._flow_index.sizes.set_all(
            {name: size_rank(name, len(share)) for name, share in self.fresh.items()}
        )

    def _resize(self, tasks: int) -> list[str]:
        """End the tasks that are too many; those that lack, with the others evened out for them."""
        wanted = _names(tasks)
        old = {name: t for name, t in self._builder.tasks.items() if t.kind == COLLECT}
        for name in in_order(old.keys() - set(wanted)):
            self._take(old[name].partitions)
            self._builder.end(name)
        fresh = [name for name in wanted if name not in old]
        if fresh:
            self._shares.update((name, []) for name in fresh)
            self._flow_index.sizes.set_all({name: size_rank(name, 0) for name in fresh})
            self._even_out(wanted)
        return fresh

    def _follow(self, journals: Collection[str]) -> None:
        """Drop the journals that are not open, take in those that are and are in no task."""
        unplaced = []
        known, moved = self._flow_index.task_of, self._task_of
        for name in journals:
            home = moved[name] if name in moved else known.get(name)
            if is_open(self._builder, name):
                if home is None:
                    unplaced.append(name)
            elif home is not None:
                self._share(home).remove(name)
                self._resized(home)
        unplaced.sort()
        task_of = self._flow_index.sizes.take(len(unplaced), ONE_MORE)
        for name, home in zip(unplaced, task_of, strict=True):
            self._share(home).append(name)

    def _even_out(self, tasks: Collection[str]) -> None:
        """Take journals from tasks that have more than their part; ``follow`` shares them out."""
        counts = {name: partitions_of(self._flow_index.sizes.ranks[name]) for name in tasks}
        least, more = divmod(sum(counts.values()), len(counts))
        by_size = sorted(counts, key=lambda name: -counts[name])
        for place, name in enumerate(by_size):
            most = least + 1 if place < more else least
            if counts[name] > most:
                share = self._share(name)
                self._take(share[most:])
                del share[most:]
                self._resized(name)

    def _take(self, journals: Collection[str]) -> None:
        self._moved.update(journals)
        self._task_of.update(dict.fromkeys(journals))

    def _share(self, name: str) -> list[str]:
        share = self._shares.get(name)
        if share is None:
            task = self._builder.task(name)
            share = self._shares[name] = list(task.partitions) if task else []
        return share

    def _resized(self, name: str) -> None:
        self._flow_index.sizes.set(name, size_rank(name, len(self._shares[name])))


def is_open(builder: PlanBuilder, name: str) -> bool:
    """Whether the journal is the flow's, and is still to be read."""
    snapshot = builder.snapshot
    journal = snapshot.journals.get(name)
    return (
        journal is not None and journal.flow == builder.flow.name and name not in snapshot.drained
    )


def count_open(builder: PlanBuilder, changes: ChangeSet) -> int:
    """How many of the flow's journals are open; what has not changed is counted in the index."""
    snapshot, known = builder.snapshot, builder.flow_index.task_of
    if changes.everything:
        own = snapshot.journals_of(builder.flow.name)
        drained = snapshot.drained
        return len(own) - (sum(name in drained for name in own) if drained else 0)
    return len(known) + sum(
        is_open(builder, name) - (name in known) for name in set(changes.journals)
    )


def _names(tasks: int) -> list[str]:
    return [f"{COLLECT}.{number}" for number in range(tasks)]


def _own_journals(builder: PlanBuilder) -> Collection[str]:
    """All that are the flow's, and all that its tasks read."""
    own = builder.snapshot.journals_of(builder.flow.name)
    return {*own, *builder.flow_index.task_of} if builder.flow_index.task_of else own
