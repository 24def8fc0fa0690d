"""Which task of a flow reads which of its journals: each stays in the task that it is in, new ones
join the smallest. When tasks are added, as few journals as possible move to even the tasks out.

A task that gets a journal from another one needs a higher epoch than that one had, since the acks
refuse a lower one.

No journal leaves a task that has a batch under way which has to be repeated exactly: see
``PlanBuilder``. A task that is to end goes by itself as soon as it has none; when tasks are added,
all that give journals away do so together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain

from flumeng.plan.placement_index import ONE_MORE, in_order, partitions_of, size_rank
from flumeng.plan.plan_builder import ChangeSet, PlanBuilder
from zkschema.records import COLLECT, PlannedTask


class PartitionAssigner:
    """A flow's journals over its tasks as they are to be; tasks not wanted any more are ended.

    ``fresh`` are the tasks that were not planned before, in order, with what they are to read.
    ``shares`` has the journals of those tasks whose journals change, ``task_of`` the tasks of the
    journals that change, ``moved`` the journals that were taken from a task. ``FlowIndex.sizes`` is
    brought up to date at once.
    """

    def __init__(self, builder: PlanBuilder, tasks: int, changes: ChangeSet) -> None:
        self._builder = builder
        self._flow_index = builder.flow_index
        self._shares: dict[str, list[str]] = {}
        self._task_of: dict[str, str | None] = {}
        self._moved: set[str] = set()
        self.fresh: dict[str, tuple[str, ...]] = {}
        if not changes.everything:
            self._follow(changes.journals)
        elif builder.flow_index.sizes.ranks:
            journals = _own_journals(builder)
            if builder.decides:
                self._follow(journals)  # what is held is held with all that it is to read
            fresh = self._resize(tasks)
            self._follow(journals)
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
        sharing = gained and builder.flow.plan.sharing
        if task.node and (gained & self._moved or sharing or name in builder.fenced):
            builder.epoch += 1
            return replace(task, partitions=partitions, epoch=builder.epoch)
        return replace(task, partitions=partitions)

    def _deal(self, tasks: int) -> None:
        """The journals of a flow that has no tasks yet, or whose plan was lost."""
        builder = self._builder
        if builder.flow.epoch_floor and builder.decides and builder.intents is None:
            builder.held.update(_names(tasks))
            return
        snapshot = builder.snapshot
        drained = snapshot.drained
        own = snapshot.journals_of(builder.flow.name)
        decided = self._decided()
        away = {*drained, *chain.from_iterable(decided.values())}
        journals = sorted(name for name in own if name not in away) if away else sorted(own)
        self.fresh = {name: tuple(journals[n::tasks]) for n, name in enumerate(_names(tasks))}
        for name, reads in decided.items():
            self.fresh[name] = tuple(sorted((*self.fresh.get(name, ()), *reads)))
        self._flow_index.sizes.set_all(
            {name: size_rank(name, len(share)) for name, share in self.fresh.items()}
        )

    def _decided(self) -> dict[str, list[str]]:
        """What the tasks read that have to repeat a batch."""
        builder = self._builder
        return {
            name: [journal for journal in intent.record.ranges if is_open(builder, journal)]
            for name, intent in ((builder.intents or {}) if builder.decides else {}).items()
            if intent.record is not None and intent.open
        }

    def _resize(self, tasks: int) -> list[str]:
        """End the tasks that are too many; those that lack, with the others evened out for them."""
        wanted = _names(tasks)
        old = {name: t for name, t in self._builder.tasks.items() if t.kind == COLLECT}
        for name in in_order(old.keys() - set(wanted)):
            if not self._builder.may_lose(name):
                self._builder.held.add(name)
                continue
            self._take(tuple(self._share(name)))
            self._builder.end(name)
        fresh = [name for name in wanted if name not in old]
        if not fresh:
            return []
        keep = self._even_shares(wanted)
        if not all(map(self._builder.may_lose, keep)):
            self._builder.held.update(keep)
            return []
        self._shares.update((name, []) for name in fresh)
        self._flow_index.sizes.set_all({name: size_rank(name, 0) for name in fresh})
        self._even_out(keep)
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
                self._task_of[name] = None
                self._resized(home)
        unplaced.sort()
        task_of = self._flow_index.sizes.take(len(unplaced), ONE_MORE)
        for name, home in zip(unplaced, task_of, strict=True):
            self._share(home).append(name)
            self._task_of[name] = home

    def _even_shares(self, tasks: Collection[str]) -> dict[str, int]:
        """The tasks that have more journals than their part, and how many they keep."""
        ranks = self._flow_index.sizes.ranks
        counts = {name: partitions_of(ranks[name]) if name in ranks else 0 for name in tasks}
        least, more = divmod(sum(counts.values()), len(counts))
        by_size = sorted(counts, key=lambda name: -counts[name])
        parts = {name: least + (place < more) for place, name in enumerate(by_size)}
        return {name: most for name, most in parts.items() if counts[name] > most}

    def _even_out(self, keep: Mapping[str, int]) -> None:
        """Take from each all but so many of its journals; ``follow`` shares them out."""
        for name, most in keep.items():
            share = self._share(name)
            self._builder.lost(name)
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
