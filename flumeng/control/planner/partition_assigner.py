"""Assigns partitions to a flow's tasks: each stays in its task, new ones join the smallest task,
and added tasks take as few as possible from others, from all donors or none. A task that gains a
partition from another needs a higher epoch than that task, since acks refuse lower ones. No
partition leaves a task with an open batch (see ``PlanBuilder``), nor does a surplus task end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain

from flumeng.control.planner.placement_index import ONE_MORE, in_order, partitions_of, size_rank
from flumeng.control.planner.plan_builder import PlanBuilder
from flumeng.control.planner.snapshot_changes import ChangeSet
from zkschema.records import COLLECT, PlannedTask


class PartitionAssigner:
    """Partitions by task: ``fresh`` of new tasks, ``_shares`` of changing ones. ``_task_of``: the
    task, or None, of each changing partition; ``_moved``: partitions taken from a task."""

    def __init__(self, builder: PlanBuilder, tasks: int, changes: ChangeSet) -> None:
        self._builder = builder
        self._flow_index = builder.flow_index
        self._shares: dict[str, list[str]] = {}
        self._task_of: dict[str, str | None] = {}
        self._moved: set[str] = set()
        self.fresh: dict[str, tuple[str, ...]] = {}
        if not changes.everything:
            self._follow(changes.partitions)
        elif builder.flow_index.sizes.ranks:
            own = builder.snapshot.partitions_of(builder.flow.name)
            partitions = {*own, *builder.flow_index.task_of}
            if builder.decides:
                self._follow(partitions)  # a held task gets all its partitions first
            fresh = self._resize(tasks)
            self._follow(partitions)
            self.fresh = {name: tuple(sorted(self._shares.pop(name))) for name in fresh}
        else:
            self._deal(tasks)

    def changed(self) -> dict[str, PlannedTask]:
        changed = {}
        for name in in_order(self._shares):
            task = self._builder.task(name)
            partitions = tuple(sorted(self._shares[name]))
            if task is not None and partitions != task.partitions:
                changed[name] = self._with(name, task, partitions)
        return changed

    def _with(self, name: str, task: PlannedTask, partitions: tuple[str, ...]) -> PlannedTask:
        builder = self._builder
        builder.why.append(f"task {builder.flow.name}/{name} reads {len(partitions)} partitions")
        gained = set(partitions) - set(task.partitions)
        sharing = gained and builder.flow.plan.sharing
        if task.node and (gained & self._moved or sharing or name in builder.fenced):
            builder.epoch += 1
            return replace(task, partitions=partitions, epoch=builder.epoch)
        return replace(task, partitions=partitions)

    def _deal(self, tasks: int) -> None:
        """Distribute the partitions of a flow that has no tasks, or lost its plan."""
        builder = self._builder
        if builder.flow.epoch_floor and builder.decides and builder.intents is None:
            builder.held.update(_names(tasks))
            return
        own = builder.snapshot.open_of(builder.flow.name)
        decided = self._decided()
        away = set(chain.from_iterable(decided.values()))
        left = sorted(name for name in own if name not in away) if away else sorted(own)
        self.fresh = {name: tuple(left[n::tasks]) for n, name in enumerate(_names(tasks))}
        for name, reads in decided.items():
            self.fresh[name] = tuple(sorted((*self.fresh.get(name, ()), *reads)))
        self._flow_index.sizes.set_all(
            {name: size_rank(name, len(share)) for name, share in self.fresh.items()}
        )

    def _decided(self) -> dict[str, list[str]]:
        """Return the partitions of each task that has to repeat a batch."""
        builder = self._builder
        return {
            name: [part for part in intent.record.ranges if is_open(builder, part)]
            for name, intent in ((builder.intents or {}) if builder.decides else {}).items()
            if intent.record is not None and intent.open
        }

    def _resize(self, tasks: int) -> list[str]:
        """End surplus tasks; add missing ones with partitions of the others, and return these."""
        names = _names(tasks)
        old = {name: t for name, t in self._builder.tasks.items() if t.kind == COLLECT}
        for name in in_order(old.keys() - set(names)):
            if not self._builder.may_lose(name):
                self._builder.held.add(name)
                continue
            self._take(tuple(self._share(name)))
            self._builder.end(name)
        fresh = [name for name in names if name not in old]
        if not fresh:
            return []
        keep = self._even_shares(names)
        if not all(map(self._builder.may_lose, keep)):
            self._builder.held.update(keep)
            return []
        self._shares.update((name, []) for name in fresh)
        self._flow_index.sizes.set_all({name: size_rank(name, 0) for name in fresh})
        self._even_out(keep)
        return fresh

    def _follow(self, partitions: Collection[str]) -> None:
        """Drop partitions that are drained or gone, and assign open ones that have no task."""
        unplaced = []
        planned, moved = self._flow_index.task_of, self._task_of
        for name in partitions:
            home = moved[name] if name in moved else planned.get(name)
            if is_open(self._builder, name):
                if home is None:
                    unplaced.append(name)
            elif home is not None and self._may_drop(home, name):
                self._share(home).remove(name)
                self._task_of[name] = None
                self._resized(home)
        unplaced.sort()
        task_of = self._flow_index.sizes.take(len(unplaced), ONE_MORE)
        for name, home in zip(unplaced, task_of, strict=True):
            self._share(home).append(name)
            self._task_of[name] = home

    def _may_drop(self, home: str, name: str) -> bool:
        """Return whether the task may drop an acked partition; if so fence it, else hold it."""
        builder = self._builder
        if not builder.decides or name not in builder.flow.partitions:
            return True
        if not builder.may_lose(home):
            builder.held.add(home)
            return False
        builder.fence(home)
        return True

    def _even_shares(self, tasks: Collection[str]) -> dict[str, int]:
        """Return the tasks with more partitions than their share, and how many each keeps."""
        ranks = self._flow_index.sizes.ranks
        counts = {name: partitions_of(ranks[name]) if name in ranks else 0 for name in tasks}
        least, more = divmod(sum(counts.values()), len(counts))
        by_size = sorted(counts, key=lambda name: -counts[name])
        parts = {name: least + (n < more) for n, name in enumerate(by_size)}
        return {name: most for name, most in parts.items() if counts[name] > most}

    def _even_out(self, keep: Mapping[str, int]) -> None:
        """Take all but the given number from each task; ``_follow`` reassigns them."""
        for name, most in keep.items():
            share = self._share(name)
            self._builder.fence(name)
            self._take(share[most:])
            del share[most:]
            self._resized(name)

    def _take(self, partitions: Collection[str]) -> None:
        self._moved.update(partitions)
        self._task_of.update(dict.fromkeys(partitions))

    def _share(self, name: str) -> list[str]:
        share = self._shares.get(name)
        if share is None:
            task = self._builder.task(name)
            share = self._shares[name] = list(task.partitions) if task else []
        return share

    def _resized(self, name: str) -> None:
        self._flow_index.sizes.set(name, size_rank(name, len(self._shares[name])))


def is_open(builder: PlanBuilder, name: str) -> bool:
    return builder.snapshot.is_open(builder.flow.name, name)


def count_open(builder: PlanBuilder, changes: ChangeSet) -> int:
    """Return the number of the flow's open partitions; unchanged ones are counted in the index."""
    task_of = builder.flow_index.task_of
    if changes.everything:
        return len(builder.snapshot.open_of(builder.flow.name))
    return len(task_of) + sum(
        is_open(builder, name) - (name in task_of) for name in set(changes.partitions)
    )


def _names(tasks: int) -> list[str]:
    return [f"{COLLECT}.{number}" for number in range(tasks)]
