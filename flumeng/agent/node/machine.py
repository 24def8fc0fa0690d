"""The node's state machine: events in, instructions out. Pure: no processes, sockets, clock or
store.

1. ``TRANSITIONS`` maps a child's state and an event to a handler; a missing pair raises with the
   event log.
2. A running child gets the whole configuration whenever it changes, and when it becomes ready;
   never a difference.
3. A child that ends unasked is restarted after a back-off of 0.1 s that doubles to 10 s, and starts
   over after a minute of running.
4. Status, journals and addresses derive from the last messages of running children. An assignment
   is applied when each child has answered its last configuration. Before the first assignment no
   child is configured: an empty one would close every journal.
5. An ingest worker gets the acks of its own journals, and all ingest tasks: a task runs when it
   runs in each worker.
6. A child that is silent, or stops, for longer than its limit is killed. Pauses of this process do
   not count.
7. A flow that crashes the collector repeatedly is set aside: see ``CrashSuspects``.
8. A collector whose Spark settings change drains and is restarted.
9. With ``warm`` a collector also runs without tasks, if Spark runs on this host: executors would
   take cores of a cluster. It starts a few seconds after the node. Without tasks its end is no
   problem of the node, and its back-off doubles to ten minutes.
10. Stopping: ingest accepts nothing more, the collector drains, then serving of journals ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from flumeng.agent.node import children, events
from flumeng.agent.node.children import DEFAULT_LIMITS, Child, Limits, State
from flumeng.agent.node.crash_suspects import CrashSuspects
from flumeng.agent.node.events import Event, Instruction
from flumeng.agent.node.protocol import Message
from flumeng.events.journal_names import worker_of
from zkschema.records import COLLECT, DISCOVER, GATEWAY, INGEST, AssignedTask, NodeStatus

STORY_EVENTS = 200
BACKOFF_SECONDS = 0.1
BACKOFF_MOST_SECONDS = 10.0
WARM_BACKOFF_MOST_SECONDS = 600.0
WARM_AFTER_SECONDS = 5.0
"""Age of the node at the start of a collector without tasks: ingest starts first."""
HEALTHY_SECONDS = 60.0
KILL_SECONDS = 4.0
DRAIN_SECONDS = 10.0
"""Time to drain for a collector that is restarted with other settings."""
KILL_AGAIN_SECONDS = 1.0
PAUSE_SECONDS = 1.0
"""A longer gap between two events is a pause of the node itself."""


class FaultError(AssertionError):
    """An event that is impossible in the current state; carries the event log."""


class Machine:
    """The state machine of a node. ``changes`` grows when the node's reported state may differ."""

    def __init__(
        self,
        roles: tuple[str, ...],
        clock: Callable[[], float],
        workers: int = 1,
        limits: Limits = DEFAULT_LIMITS,
        *,
        warm: bool = False,
    ) -> None:
        self._clock = clock
        self._warm = warm
        self._warm_at = clock() + WARM_AFTER_SECONDS
        self._limits = limits
        self._turned_at = clock()
        self.children = {
            name: Child(name, backoff_seconds=BACKOFF_SECONDS)
            for name in children.names(roles, workers)
        }
        self._ingest = [child for child in self.children.values() if child.role == INGEST]
        self._assigned: events.Assigned | None = None
        self._applied = -1
        self._acks: dict[str, int] = {}
        self._delivered: dict[str, int] = {}
        self._replicas: Message | None = None
        self._past: events.Past | None = None
        self.proposals: dict[str, Message] = {}
        """Membership changes that workers request; the node removes each to apply it."""
        self._stopping: events.Stop | None = None
        self._suspects = CrashSuspects()
        self.changes = 0
        self.story: deque[events.Step] = deque(maxlen=STORY_EVENTS)
        self._record("node", "start", "", "running")

    def handle(self, event: Event) -> list[Instruction]:
        """Handle an event and return the instructions. The only entry point for events."""
        self._discount_pause()
        last_step = self.story[-1].number
        instructions = self._handle(event)
        if _matters(event) or self.story[-1].number != last_step:
            self.changes += 1
        if all(child.answered == child.sent for child in self.children.values()):
            self._applied = self._assigned.version if self._assigned else -1
        self.check()
        return instructions

    def _handle(self, event: Event) -> list[Instruction]:
        if isinstance(event, events.Assigned):
            return self._on_assigned(event)
        if isinstance(event, events.Acked):
            return self._on_acked(event)
        if isinstance(event, events.Delivered):
            return self._on_delivered(event)
        if isinstance(event, events.Replicas):
            self._replicas = event.message
            return self._tell_replicas()
        if isinstance(event, events.Past):
            self._past = event
            running = [child for child in self._ingest if child.state is State.RUNNING]
            return [instruction for child in running for instruction in self._tell_past(child)]
        if isinstance(event, events.Stop):
            return self._on_stop(event)
        if isinstance(event, events.Tick):
            return [i for child in self.children.values() for i in self._step(child, "tick")]
        child = self.children[event.child]
        if isinstance(event, events.Ended):
            if child.state in (State.RUNNING, State.HUNG):
                self._suspect(child, event)
            return self._step(child, "ended", event)
        return self._step(child, str(event.message["type"]), event.message)

    def _suspect(self, child: Child, event: events.Ended) -> None:
        assigned = self._assigned.assignment.tasks if self._assigned else ()
        how = child.trouble if child.state is State.HUNG else f"ended with code {event.code}"
        before = self._suspects.aside
        self._suspects = self._suspects.after_end(self._clock(), event.running, assigned, how)
        for flow in sorted(self._suspects.aside.keys() - before.keys()):
            self._record(flow, "ended", "", "set aside", self._suspects.aside[flow].why)

    def _discount_pause(self) -> None:
        now = self._clock()
        paused = now - self._turned_at - PAUSE_SECONDS
        self._turned_at = now
        if paused > 0:
            for child in self.children.values():
                child.be_patient(paused)

    @property
    def status(self) -> NodeStatus:
        assigned = self._assigned.assignment.tasks if self._assigned else ()
        tasks = children.statuses(self.children.values(), assigned)
        if self._assigned and self._assigned.unreadable:
            tasks |= children.unreadable(tasks, self._assigned)
        tasks |= children.set_aside(tasks, assigned, self._suspects)
        return NodeStatus(
            assignment_version=self._applied,
            tasks=tasks,
            journals_told=self.knows_all_journals,
            problems=self._problems,
            spark_ui=next((c.spark_ui for c in self.children.values() if c.spark_ui), ""),
        )

    @property
    def _problems(self) -> dict[str, str]:
        blamed = [c for c in self.children.values() if self._needed(c) or not self._is_warm(c)]
        trouble = {child.name: child.trouble for child in blamed if child.trouble}
        held = {child.name: f"held: {child.held}" for child in blamed if child.held}
        locked = {
            f"journal {name}": journal["locked"]
            for name, journal in (self.journals or {}).items()
            if journal.get("locked")
        }
        older = {
            f"journal {name}": item["why"] for name, item in self._refused.items() if item["older"]
        }
        return trouble | held | locked | older

    @property
    def _refused(self) -> Mapping[str, Mapping[str, Any]]:
        """Journals that accept no events, since readers may have seen events that they lack."""
        return {name: refusal for child in self._ingest for name, refusal in child.refused.items()}

    @property
    def has_settled_past(self) -> bool:
        """Whether no local journal may lack events that readers or other replicas have seen."""
        answers = [child.answered for child in self._ingest]
        return None not in answers and all(refusal["settled"] for refusal in self._refused.values())

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the ingest workers; empty for a worker that does not serve."""
        return tuple(child.address for child in self._ingest)

    @property
    def discovery(self) -> str:
        return self._address_of(DISCOVER)

    @property
    def collector(self) -> str:
        return self._address_of(COLLECT)

    @property
    def gateway(self) -> str:
        return self._address_of(GATEWAY)

    def _address_of(self, child: str) -> str:
        process = self.children.get(child)
        return process.address if process else ""

    @property
    def journals(self) -> Mapping[str, Mapping[str, Any]] | None:
        """The journals of running workers by id; None before the first report."""
        reports = [child.journals for child in self._ingest if child.journals is not None]
        return (
            {n: journal for report in reports for n, journal in report.items()} if reports else None
        )

    @property
    def knows_all_journals(self) -> bool:
        return all(child.journals is not None for child in self._ingest)

    @property
    def not_running(self) -> tuple[str, ...]:
        return tuple(
            child.name
            for child in self.children.values()
            if child.state is not State.RUNNING and self._needed(child)
        )

    @property
    def kept_flows(self) -> tuple[str, ...]:
        """The flows with source state outside their journals."""
        return tuple(sorted({flow for child in self._ingest for flow in child.kept_flows}))

    @property
    def replicas(self) -> Mapping[str, str]:
        """The ids of local replicas of other nodes' journals, by journal."""
        return {name: id_ for child in self._ingest for name, id_ in child.replicas.items()}

    @property
    def awaited(self) -> frozenset[str]:
        """The journals with senders that wait for delivery."""
        return frozenset(name for child in self._ingest for name in child.awaited)

    def check(self) -> None:
        for child in self.children.values():
            state = child.address or child.tasks or child.journals
            assert child.state not in (State.ABSENT, State.WAITING) or not state, child
        assert not (self._stopping and self._any(State.WAITING)), "waits while it stops"

    def _on_assigned(self, event: events.Assigned) -> list[Instruction]:
        before = f"assignment {self._assigned.version}" if self._assigned else ""
        count = len(event.assignment.tasks)
        cause = f"{count} task{'' if count == 1 else 's'}"
        self._record("node", "wanted", before, f"assignment {event.version}", cause)
        self._assigned = event
        return [i for child in self.children.values() for i in self._step(child, "wanted")]

    def _on_acked(self, event: events.Acked) -> list[Instruction]:
        acks = {name: ack for name, ack in event.acks.items() if self._acks.get(name) != ack}
        delivered = {n: ack for n, ack in event.delivered.items() if self._delivered.get(n) != ack}
        self._acks.update(acks)
        self._delivered.update(delivered)
        for name in event.unneeded:
            self._acks.pop(name, None)
            self._delivered.pop(name, None)
        instructions: list[Instruction] = []
        for child in self._ingest:
            if child.state is State.RUNNING:
                instructions += self._tell_offsets(child, acks, delivered)
                journals = [name for name in sorted(event.unneeded) if self._is_of(child, name)]
                flows = [flow for flow in sorted(event.gone_flows) if flow in child.kept_flows]
                if journals or flows:
                    message = {"type": "remove", "journals": journals, "flows": flows}
                    instructions.append(events.Tell(child.name, message))
        return instructions

    def _tell_offsets(
        self, child: Child, acks: Mapping[str, int], delivered: Mapping[str, int]
    ) -> list[Instruction]:
        instructions: list[Instruction] = []
        for kind, offsets in (("acks", acks), ("delivered", delivered)):
            own = {name: offset for name, offset in offsets.items() if self._is_of(child, name)}
            if own:
                instructions.append(events.Tell(child.name, {"type": kind, "acks": own}))
        return instructions

    def _tell_past(self, child: Child) -> list[Instruction]:
        """Return the message with the acks at the node's start; it precedes the configuration."""
        if self._past is None:
            return []
        workers = len(self._ingest)
        seen = {
            name: offset
            for name, offset in self._past.seen.items()
            if worker_of(name, workers) == child.number
        }
        return [
            events.Tell(child.name, {"type": "past", "seen": seen, "restored": self._past.restored})
        ]

    def _tell_replicas(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for child in self._ingest:
            news = self._replicas is not None and child.replicas_sent != self._replicas
            if news and child.state in (State.RUNNING, State.STOPPING):
                child.replicas_sent = self._replicas
                assert self._replicas is not None
                instructions.append(events.Tell(child.name, self._replicas))
        return instructions

    def _on_delivered(self, event: events.Delivered) -> list[Instruction]:
        instructions: list[Instruction] = []
        for child in self._ingest:
            awaited = child.awaited
            news = {n: ack for n, ack in event.acks.items() if n in awaited and awaited[n] != ack}
            if news and child.state in (State.RUNNING, State.STOPPING):
                awaited.update(news)
                instructions.append(events.Tell(child.name, {"type": "delivered", "acks": news}))
        return instructions

    def _is_of(self, child: Child, journal: str) -> bool:
        """Return whether the child serves a journal; the first worker has other nodes' replicas."""
        return journal in child.replicas or worker_of(journal, len(self._ingest)) == child.number

    def _on_stop(self, event: events.Stop) -> list[Instruction]:
        self._record("node", "stop", "running", "stopping")
        self._stopping = event
        steps = [i for child in self.children.values() for i in self._step(child, "stop")]
        return [*steps, *self._finish()]

    def _step(self, child: Child, event: str, detail: Any = None) -> list[Instruction]:
        handler = TRANSITIONS.get((child.state, event))
        if handler is None:
            story = "; ".join(map(str, self.story))
            raise FaultError(f"{child.name} is {child.state.value}, got {event}: {story}")
        before = child.state
        instructions = handler(self, child, detail)
        if child.state is not before:
            child.since = self._clock()
            cause = (detail.why or f"exit code {detail.code}") if event == "ended" else ""
            if child.state is State.HUNG:
                cause = child.trouble
            self._record(child.name, event, before.value, child.state.value, cause)
        return instructions

    def _record(self, who: str, event: str, before: str, after: str, cause: str = "") -> None:
        number = self.story[-1].number + 1 if self.story else 0
        self.story.append(events.Step(number, self._clock(), who, event, before, after, cause))

    def _record_tasks(self, child: Child, after: Mapping[str, Any]) -> None:
        several = child.role == INGEST and len(self._ingest) > 1
        for key in sorted({*child.tasks, *after}):
            old, new = child.tasks.get(key, {}), after.get(key, {})
            before, now = old.get("state", ""), new.get("state", "")
            trouble = new.get("error") or ""
            if before != now or trouble != (old.get("error") or ""):
                who = f"{key} in {child.name}" if several else key
                well = "recovered" if before == now and not trouble else ""
                self._record(who, "status", before, now, trouble or well)

    def _record_refused(self, child: Child, after: Mapping[str, Mapping[str, Any]]) -> None:
        for name in sorted(after.keys() - child.refused.keys()):
            cause = after[name]["why"]
            self._record(f"journal {name}", "status", "", "takes no more events", cause)

    def _ignore(self, _child: Child, _detail: object) -> list[Instruction]:
        return []

    def _start_if_needed(self, child: Child, _detail: object) -> list[Instruction]:
        warms = self._is_warm(child) and self._clock() >= self._warm_at
        if self._stopping or not (self._needed(child) or warms):
            return []
        child.state = State.STARTING
        child.starts += 1
        child.heard_at = self._clock()
        child.spark = self._spark
        return [events.Start(child.name)]

    def _start_after_backoff(self, child: Child, _detail: object) -> list[Instruction]:
        most = BACKOFF_MOST_SECONDS if self._needed(child) else WARM_BACKOFF_MOST_SECONDS
        if self._clock() - child.since < min(child.backoff_seconds, most):
            return []
        child.backoff_seconds = min(child.backoff_seconds * 2, most)
        child.state = State.ABSENT
        return self._start_if_needed(child, None)

    def _on_ready(self, child: Child, detail: Any) -> list[Instruction]:
        child.state = State.RUNNING
        child.trouble = ""
        child.heard_at = self._clock()
        child.address = detail.get("address", "")
        child.spark_ui = detail.get("spark_ui", "")
        if self._outdated(child) or not (self._needed(child) or self._is_warm(child)):
            return self._stop(child, 0.0)
        instructions = self._tell_past(child) if child.role == INGEST else []
        instructions += self._configure(child)
        if child.role == INGEST:
            instructions += self._tell_offsets(child, self._acks, self._delivered)
            instructions += self._tell_replicas()
        return instructions

    def _on_status(self, child: Child, detail: Any) -> list[Instruction]:
        self._record_tasks(child, detail["tasks"])
        self._record_refused(child, detail.get("refused", {}))
        child.tasks = detail["tasks"]
        child.journals = detail.get("journals")
        child.kept_flows = tuple(detail.get("kept_flows", ()))
        child.replicas = detail.get("replicas", {})
        child.refused = detail.get("refused", {})
        child.answered = detail["answers"]
        return []

    def _on_awaits(self, child: Child, detail: Any) -> list[Instruction]:
        child.awaited = {name: child.awaited.get(name, 0) for name in detail["journals"]}
        return []

    def _on_proposal(self, _child: Child, detail: Any) -> list[Instruction]:
        self.proposals[detail["journal"]] = detail
        return []

    def _on_alive(self, child: Child, detail: Any) -> list[Instruction]:
        held = detail.get("held", "")
        child.heard_at = self._clock()
        if held and held != child.held:
            child.held_at = child.heard_at
        if bool(held) != bool(child.held):
            state = child.state.value
            self._record(child.name, "alive", state, state, f"held: {held}" if held else "resumed")
        child.held = held
        return []

    def _watch(self, child: Child, _detail: object) -> list[Instruction]:
        """Kill a hung child; send a collector its suspects when these change."""
        killed = self._kill_if_hung(child, None)
        if killed or child.role != COLLECT or child.suspects == self._suspects.at(self._clock()):
            return killed
        return self._on_wanted_running(child, None)

    def _kill_if_hung(self, child: Child, _detail: object) -> list[Instruction]:
        why = child.hang(self._clock(), self._limits)
        if not why:
            return []
        self._forgive(child)
        child.forget()
        child.state, child.trouble = State.HUNG, why
        child.hangs += 1
        return self._kill(child, why)

    def _kill_if_outdated(self, child: Child, _detail: object) -> list[Instruction]:
        """Kill a starting child with old settings, which may block it: it reads no messages yet."""
        if not self._outdated(child):
            return []
        child.state, child.trouble = State.HUNG, "ended by the node, as its settings have changed"
        return self._kill(child, "its settings have changed")

    def _kill_again(self, child: Child, _detail: object) -> list[Instruction]:
        return self._kill(child, child.trouble) if self._clock() > child.kill_at else []

    def _kill(self, child: Child, why: str) -> list[Instruction]:
        child.kill_at = self._clock() + KILL_AGAIN_SECONDS
        return [events.Kill(child.name, why)]

    def _forgive(self, child: Child) -> None:
        if child.state is State.RUNNING and self._clock() - child.since > HEALTHY_SECONDS:
            child.backoff_seconds = BACKOFF_SECONDS

    def _on_wanted_running(self, child: Child, _detail: object) -> list[Instruction]:
        if self._stopping:
            return []
        if not (self._needed(child) or self._is_warm(child)):
            return self._stop(child, 0.0)
        return self._stop(child, DRAIN_SECONDS) if self._outdated(child) else self._configure(child)

    def _on_unasked_end(self, child: Child, end: Any) -> list[Instruction]:
        self._forgive(child)
        child.forget()
        if child.state is not State.HUNG:
            child.trouble = end.why or f"ended with code {end.code}"
        child.state = State.ABSENT if self._stopping else State.WAITING
        return self._finish()

    def _on_asked_end(self, child: Child, _detail: object) -> list[Instruction]:
        child.forget()
        child.state, child.trouble = State.ABSENT, ""
        return [*self._start_if_needed(child, None), *self._finish()]

    def _stop_child(self, child: Child, _detail: object) -> list[Instruction]:
        """Stop a child. The collector drains first; until then ingest only stops accepting."""
        assert self._stopping is not None
        if child.role == INGEST and self._alive(COLLECT):
            return [events.Tell(child.name, {"type": "quiesce"})]
        return self._stop(child, self._stopping.drain_seconds)

    def _cancel_start(self, child: Child, _detail: object) -> list[Instruction]:
        """Stop a starting child. A collector reads no message before Spark runs: it is killed."""
        instructions = self._stop(child, 0.0)
        return self._kill(child, "the node stops") if child.role == COLLECT else instructions

    def _stop(self, child: Child, drain_seconds: float) -> list[Instruction]:
        child.state = State.STOPPING
        child.kill_at = self._clock() + drain_seconds + KILL_SECONDS
        return [events.Tell(child.name, {"type": "stop", "drain_seconds": drain_seconds})]

    def _kill_if_late(self, child: Child, _detail: object) -> list[Instruction]:
        late = self._clock() > child.kill_at
        return self._kill(child, "did not stop in time") if late else []

    def _give_up_waiting(self, child: Child, _detail: object) -> list[Instruction]:
        child.state = State.ABSENT
        return []

    def _finish(self) -> list[Instruction]:
        """While stopping, stop ingest after the collector, and exit after the last child."""
        if self._stopping is None:
            return []
        serving = [child for child in self._ingest if child.state is State.RUNNING]
        if serving and not self._alive(COLLECT):
            return [instruction for child in serving for instruction in self._stop(child, 0.0)]
        if all(child.state is State.ABSENT for child in self.children.values()):
            return [events.Exit()]
        return []

    def _needed(self, child: Child) -> bool:
        """Return whether the child has to run. Ingest and gateways always do, since they serve;
        without ingest discovery does, to answer operators. Others run when they have tasks."""
        asked = child.role in (GATEWAY, INGEST if self._ingest else DISCOVER)
        return asked or bool(self._tasks(child))

    def _is_warm(self, child: Child) -> bool:
        """Return whether the child runs even without tasks, so that a takeover finds it ready."""
        local = self._spark.get("master", "local").startswith("local")
        return self._warm and child.role == COLLECT and self._assigned is not None and local

    @property
    def _spark(self) -> Mapping[str, str]:
        return self._assigned.assignment.spark if self._assigned else {}

    def _outdated(self, child: Child) -> bool:
        return child.role == COLLECT and child.spark != self._spark

    def _tasks(self, child: Child) -> list[AssignedTask]:
        tasks = self._assigned.assignment.tasks if self._assigned else ()
        return [task for task in tasks if task.kind == child.role and not self._suspects.why(task)]

    def _configure(self, child: Child) -> list[Instruction]:
        if self._assigned is None:
            return []
        texts = self._assigned.texts
        tasks = [
            {
                "flow": task.flow,
                "task": task.task,
                "epoch": task.epoch,
                "revision": task.revision,
                "spec": texts.get((task.flow, task.revision), ""),
                "partitions": list(task.partitions),
                "state": task.state,
                "handoff": task.handoff,
            }
            for task in self._tasks(child)
        ]
        child.sent = self._assigned.version
        message = {
            "type": "configure",
            "number": child.sent,
            "tasks": tasks,
            "chokes": dict(self._assigned.assignment.chokes),
        }
        if child.role == COLLECT:
            child.suspects = self._suspects.at(self._clock())
            message["suspects"] = sorted(child.suspects)
        return [events.Tell(child.name, message)]

    def _alive(self, name: str) -> bool:
        child = self.children.get(name)
        return child is not None and child.state is not State.ABSENT

    def _any(self, state: State) -> bool:
        return any(child.state is state for child in self.children.values())


def _matters(event: Event) -> bool:
    """Return whether the event may change the node's reported state."""
    if isinstance(event, events.Reported):
        return event.message["type"] not in ("alive", "awaits", "proposal")
    return isinstance(event, events.Assigned | events.Ended)


TRANSITIONS: Mapping[tuple[State, str], Callable[[Machine, Child, Any], list[Instruction]]] = {
    (State.ABSENT, "wanted"): Machine._start_if_needed,
    (State.ABSENT, "tick"): Machine._start_if_needed,
    (State.ABSENT, "stop"): Machine._ignore,
    (State.STARTING, "wanted"): Machine._kill_if_outdated,
    (State.STARTING, "tick"): Machine._kill_if_hung,
    (State.STARTING, "alive"): Machine._on_alive,
    (State.STARTING, "ready"): Machine._on_ready,
    (State.STARTING, "status"): Machine._on_status,
    (State.STARTING, "awaits"): Machine._on_awaits,
    (State.STARTING, "proposal"): Machine._on_proposal,
    (State.STARTING, "ended"): Machine._on_unasked_end,
    (State.STARTING, "stop"): Machine._cancel_start,
    (State.RUNNING, "wanted"): Machine._on_wanted_running,
    (State.RUNNING, "tick"): Machine._watch,
    (State.RUNNING, "alive"): Machine._on_alive,
    (State.RUNNING, "status"): Machine._on_status,
    (State.RUNNING, "awaits"): Machine._on_awaits,
    (State.RUNNING, "proposal"): Machine._on_proposal,
    (State.RUNNING, "ended"): Machine._on_unasked_end,
    (State.RUNNING, "stop"): Machine._stop_child,
    (State.STOPPING, "wanted"): Machine._ignore,
    (State.STOPPING, "tick"): Machine._kill_if_late,
    (State.STOPPING, "ready"): Machine._ignore,
    (State.STOPPING, "alive"): Machine._ignore,
    (State.STOPPING, "status"): Machine._on_status,
    (State.STOPPING, "awaits"): Machine._on_awaits,
    (State.STOPPING, "proposal"): Machine._on_proposal,
    (State.STOPPING, "ended"): Machine._on_asked_end,
    (State.STOPPING, "stop"): Machine._ignore,
    (State.HUNG, "wanted"): Machine._ignore,
    (State.HUNG, "tick"): Machine._kill_again,
    (State.HUNG, "ready"): Machine._ignore,
    (State.HUNG, "alive"): Machine._ignore,
    (State.HUNG, "status"): Machine._ignore,
    (State.HUNG, "awaits"): Machine._ignore,
    (State.HUNG, "proposal"): Machine._ignore,
    (State.HUNG, "ended"): Machine._on_unasked_end,
    (State.HUNG, "stop"): Machine._ignore,
    (State.WAITING, "wanted"): Machine._ignore,
    (State.WAITING, "tick"): Machine._start_after_backoff,
    (State.WAITING, "stop"): Machine._give_up_waiting,
}
