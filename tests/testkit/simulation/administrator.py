"""The operator of a varied world, who also changes nodes, settings and rollouts, and gives up hosts
that never return."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from flumeng.control.commands.nodes import discard_node, label_node, resize_node
from flumeng.control.commands.rollouts import Verb, abort_rollout, change_rollout
from flumeng.control.commands.settings import (
    begin_maintenance,
    end_maintenance,
    set_choke,
    set_setting,
    unset_setting,
)
from flumeng.control.commands.unfinished_writes import decided_batches, drop_batch
from flumeng.control.snapshot.assignment_pages import PAGES, assignment_writes, read_assignment
from flumeng.control.snapshot.task_map import Tasks, plan_writes, read_plan
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.simulation.canary import BROKEN
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.host import Host
from tests.testkit.simulation.operator import Operator
from zkschema import paths

DISKS = ("fast", "slow")
SLOTS = (1.0, 2.0, 6.0)
PLACE = (
    "place: {{collect: {{tasks: {tasks}, spread: {spread}, replicas: {replicas}, "
    "labels: {{{collect}}}, weight: {{slots: {slots}}}}}, ingest: {{labels: {{{ingest}}}}}}}"
)
ROLLOUTS: tuple[Verb | Literal["abort"], ...] = ("promote", "abort", "pause", "resume")
DEADLINE_SECONDS = 60


class Administrator(Operator):
    """Every second command is one of its own.

    ``large``: each plan and assignment is split into buckets and pages at once, as large ones are.
    """

    def __init__(self, world: Cluster, hosts: Mapping[str, Host], flows: Sequence[str]) -> None:
        super().__init__(world, hosts, flows)
        self._large = world.random.random() < 0.1

    def step(self) -> None:
        random = self.world.random
        if self._large:
            self._spread()
        if random.random() < 0.5:
            super().step()
            return
        commands = (
            *[self._label] * 3,
            *[self._resize] * 3,
            self._begin_maintenance,
            *[self._end_maintenance] * 2,
            *[self._choke] * 2,
            *[self._roll] * 3,
            *[self._discard] * 2,
            self._limit_recovery,
        )
        random.choice(commands)()

    def settle(self) -> None:
        """End everything in the calm that only an operator can end."""
        self._end_maintenance()
        for flow in self.flows:
            self._do(partial(self._change_rollout, flow, "resume"), f"resumes {flow}")

    def replace(self, host: Host) -> None:
        """Replace a host that never returns by a new one, once it is given up."""
        try:
            discard_node(self.signed(), host.name)
        except UserError:
            if self._may_register(host.name):
                raise
            self.say(f"{host.name} is not known any more")
        host.replace()
        self.give_up_batches()

    def give_up_batches(self) -> None:
        """Give up batches with a lost journal."""
        for batch in decided_batches(self.store):
            if batch.problem:
                drop = partial(drop_batch, self.signed(), batch.flow, batch.task)
                what = f"gives up batch {batch.number} of {batch.flow}/{batch.task}"
                self._do(drop, what)

    def _may_register(self, node: str) -> bool:
        """Whether the lost node is registered, or a late write may register it."""
        ensemble = self.world.ensemble
        late = (s for s in self.world.sessions if s.name == node and ensemble.is_open(s.session))
        return any(late) or ensemble.newest(str(paths.node(node))) is not None

    def place(self) -> str:
        random = self.world.random
        return PLACE.format(
            tasks=random.randint(1, 3),
            spread=random.choice(("load", "zone")),
            collect=random.choice(("", "", *(f"disk: {disk}" for disk in DISKS))),
            slots=random.choice((0.5, 1, 2)),
            replicas=self.replicas(),
            ingest=random.choice(("", "", "", *(f"disk: {disk}" for disk in DISKS))),
        )

    def rollout(self) -> str:
        text = super().rollout()
        return text.replace("}", f", deadline_seconds: {DEADLINE_SECONDS}}}")

    def _label(self) -> None:
        node, disk = self._some_node(), self.world.random.choice((*DISKS, ""))
        given, taken = ({"disk": disk}, ()) if disk else ({}, ("disk",))
        command = partial(label_node, self.signed(), node, given, taken)
        self._do(command, f"labels {node} {disk}")

    def _resize(self) -> None:
        node, slots = self._some_node(), self.world.random.choice((*SLOTS, 0.0))
        given, taken = ({"slots": slots}, ()) if slots else ({}, ("slots",))
        command = partial(resize_node, self.signed(), node, given, taken)
        self._do(command, f"resizes {node} to {slots}")

    def _begin_maintenance(self) -> None:
        command = partial(begin_maintenance, self.signed("work"))
        self._do(command, "begins maintenance")

    def _end_maintenance(self) -> None:
        command = partial(end_maintenance, self.signed())
        self._do(command, "ends maintenance")

    def _choke(self) -> None:
        random = self.world.random
        flow, rate = random.choice(self.flows), random.choice((None, 1000.0, 2000.0))
        node = random.choice((None, self._some_node()))
        command = partial(set_choke, self.signed(), flow, rate, node)
        what = f"chokes {flow} on {node} to {rate}"
        self._do(command, what)

    def _roll(self) -> None:
        random = self.world.random
        flow, verb = random.choice(self.flows), random.choice(ROLLOUTS)
        self._do(partial(self._change_rollout, flow, verb), f"rollout of {flow}: {verb}")

    def _change_rollout(self, flow: str, verb: Verb | Literal["abort"]) -> None:
        """A broken revision is never promoted by hand."""
        found = self.store.read(paths.flow(flow))
        current = found.value.revision if found else None
        text = self.store.read(paths.revision(flow, f"{current}")) if current else None
        if verb == "promote" and text is not None and BROKEN in text.value.text:
            return
        if verb == "abort":
            abort_rollout(self.signed(), flow, expect_revision=current)
        else:
            change_rollout(self.signed(), flow, verb, expect_revision=current)

    def _discard(self) -> None:
        lost = [host for host in self.hosts.values() if host.lost]
        if lost:
            host = self.world.random.choice(lost)
            self._do(lambda: self.replace(host), f"gives up {host.name}")

    def _limit_recovery(self) -> None:
        limit = self.world.random.choice((None, 1, 2))
        if limit is None:
            command = partial(unset_setting, self.signed(), "recovery")
        else:
            command = partial(set_setting, self.signed(), "recovery", f"{limit}")
        self._do(command, f"lets {limit} tasks recover at once")

    def _spread(self) -> None:
        with contextlib.suppress(ConflictError, UserError, UnavailableError):
            for flow in self.flows:
                self._write_buckets(flow)
            for node in self.store.children(paths.nodes()):
                self._write_pages(node)

    def _write_buckets(self, flow: str) -> None:
        found = read_plan(self.store, flow)
        if found is not None and not found.value.buckets:
            before = Tasks.of(found.value.tasks)
            plan = replace(found.value, tasks=before.spread())
            self.store.commit(plan_writes(flow, plan, before, found.version))

    def _write_pages(self, node: str) -> None:
        found = read_assignment(self.store, node)
        if found is not None and not found.value.pages:
            paged = replace(found.value, pages=PAGES)
            self.store.commit(assignment_writes(node, paged, found.value, found.version))

    def _some_node(self) -> str:
        return self.world.random.choice(sorted(self.hosts))
