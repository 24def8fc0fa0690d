"""A flow as a frozen value: checked, with every default filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from flumeng.config import branch
from flumeng.config.branch import Branch, Located
from flumeng.config.component import (
    Component,
    FilterOptions,
    OutsideJournal,
    SinkOptions,
    SourceOptions,
)
from flumeng.config.flow_names import check_flow_name
from flumeng.config.multiline import Multiline
from flumeng.config.replicas import Replicas
from flumeng.config.stages import FilterStage, FlowStage, SinkStage, stages_of
from flumeng.platform.options.option import option


@dataclass(frozen=True, kw_only=True)
class JournalEncryption:
    """Events are encrypted in the files of the flow's journals (AES-256-GCM), and decrypted where a
    node sends them to their readers. A key is 32 random bytes as hexadecimal digits or base64, as
    `openssl rand -hex 32` prints them.

    After a change of `key` the flow starts new journals. Keep the old key in `previous_keys` until
    the old journals are read, or the flow's sources stop. Positions that are kept beside events,
    such as how far each file is read, are not encrypted.

    With `durability: replicated` events travel to their replicas encrypted. A node needs the
    secrets to receive events of the flow, or to lead a journal instead of a node that is gone; to
    hold a replica it needs none.
    """

    key: str = option(
        doc="The key for new events.", secret=True, example="${secret:journal-2026-11}"
    )
    previous_keys: tuple[str, ...] = option(
        doc="Keys of events that are not read yet.",
        secret=True,
        example='["${secret:journal-2026-05}"]',
        default=(),
    )

    @property
    def references(self) -> tuple[str, ...]:
        """The references to the secrets, without duplicates, the one for new events first."""
        return tuple(dict.fromkeys((self.key, *self.previous_keys)))

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.key in self.previous_keys:
            yield "previous_keys", "expected only keys that differ from `key`"


Durability = Literal["memory", "spill", "disk", "replicated"]
Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]

FILES_SECONDS, OTHER_SECONDS = 60.0, 1.0
"""Default age of a small batch in seconds, for sinks with a file per batch and for other sinks."""
AMPLE_JOURNAL_BYTES = 2**30
"""A journal of this size holds a minute of events; a smaller one would block its senders."""


@dataclass(frozen=True)
class IngestPlace:
    """Where the sources run."""

    labels: Mapping[str, str] = option(
        doc="Run on every node that has all these labels; without any, on every ingest node.",
        example="{role: web}",
        factory=dict,
    )


@dataclass(frozen=True)
class TaskRange:
    """As many collect tasks as the events need. The flow's discovery task decides the number, by
    the lag and the rate of events; so this is for sources that have one (`kafka`). `flumeng flow
    show` lists its last decisions with their reasons."""

    max: int = option(
        doc="The most tasks; never more than there are partitions.",
        between=(1, 100_000),
        example="8",
    )
    min: int = option(doc="The fewest tasks.", between=(1, 100_000), default=1)
    lag_seconds: float = option(
        doc="The allowed age of the oldest event beyond `batch.seconds`; three times "
        "`batch.seconds` when that is more. Tasks are added after a minute above half of it, "
        "unless the flow catches up by itself.",
        between=(1, 86_400),
        default=60.0,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.max < self.min:
            yield "max", f"expected at least {self.min}, which is `min`"

    def clamp(self, tasks: int) -> int:
        return max(self.min, min(tasks, self.max))


@dataclass(frozen=True)
class CollectPlace:
    """Where the filters and sinks run."""

    labels: Mapping[str, str] = option(
        doc="Run only on nodes that have all these labels.", example="{role: spark}", factory=dict
    )
    tasks: int | TaskRange | None = option(
        doc="The number of tasks that share the flow's journals, or other partitions; more when "
        "one would read more than 5,000. With `{min, max, lag_seconds}` as many as the events "
        "need. When not given, one for each 16 partitions or 2 lanes of objects, and no more than "
        "there are nodes: the number grows when it should be twice as large, and shrinks at a "
        "quarter.",
        between=(1, 100_000),
        default=None,
    )
    weight: Mapping[str, float] = option(
        doc="The cost of reading one journal, in the dimensions in which nodes declare capacity.",
        example="{slots: 1, mb_per_second: 4}",
        factory=lambda: {"slots": 1.0},
    )
    per_node: int = option(
        doc="The most tasks of the flow on one node; 0 for any number.",
        between=(0, 100_000),
        default=0,
    )
    spread: Literal["load", "zone"] = option(
        doc="Give a task to the least loaded node, or first to the zone with the fewest of them.",
        default="load",
    )
    replicas: int = option(
        doc="The number of nodes ready for each task: its own, and the others as warm standbys "
        "with Spark running, in other zones where there are any. A standby takes over when the "
        "task's node is lost or drained. It uses no capacity.",
        between=(1, 10),
        default=1,
    )


@dataclass(frozen=True)
class Place:
    """Which nodes do the flow's work."""

    ingest: IngestPlace = option(doc="Where the sources run.", default=IngestPlace())
    collect: CollectPlace = option(doc="Where filters and sinks run.", default=CollectPlace())


@dataclass(frozen=True)
class Rollout:
    """How a new revision reaches the flow's tasks. Without it, all take it at once."""

    canary: int = option(
        doc="The number of tasks of each kind (ingest, collect) that take it first.",
        between=(1, 1000),
        default=1,
    )
    max_parallel: int = option(
        doc="After the canary, the number of tasks that take it at the same time.",
        between=(1, 100_000),
        default=1,
    )
    settle_seconds: float = option(
        doc="How long a task must run it without a failure to count as updated.",
        between=(0, 86_400),
        default=10.0,
    )
    deadline_seconds: float = option(
        doc="Without progress of any task for this long, beyond `settle_seconds`, the flow rolls "
        "back; 0: the rollout waits, and reports it.",
        between=(0, 604_800),
        default=600.0,
    )


@dataclass(frozen=True)
class Batch:
    """When collected events are written."""

    seconds: float | None = option(
        doc="A small batch waits until its oldest event is this old. When not given, a minute with "
        "a sink that makes files whose journals may hold a GiB or more, else a second.",
        between=(0, 86_400),
        default=None,
    )
    events: int = option(
        doc="The most events in a batch.", between=(1, 1_000_000_000), default=2_000_000
    )
    bytes: int | None = option(
        doc="The approximate size limit of a batch as it is read, by the size of the events in the "
        "batches before it. A batch of this size waits no longer.",
        between=(2**16, 2**40),
        default=None,
    )
    timeout_seconds: float = option(
        doc="A batch that is not written in this time is given up, with those after it. The task "
        "reports it, and tries again with twice the time, up to 600 s.",
        between=(1, 86_400),
        default=60.0,
    )


@dataclass(frozen=True)
class Lag:
    """How late the flow's events may be before `flumeng status` reports it."""

    seconds: float = option(
        doc="The allowed age of the oldest event that is not in the sinks; three times "
        "`batch.seconds` when that is more.",
        between=(1, 366 * 86_400),
        default=300.0,
    )


@dataclass(frozen=True)
class JournalOptions:
    """How the flow's journals are kept. Each ingest worker of a node has one of its own."""

    max_bytes: int | None = option(
        doc="At this size a journal takes no more events, and senders wait, until events are "
        "acked. When not given, 16 GiB, or 64 MiB with `durability: memory`.",
        between=(2**24, 2**50),
        default=None,
    )
    retain_seconds: float = option(
        doc="Acked events are kept for this long, to be read again; new events take precedence. "
        "With neither this nor `retain_bytes` they are not kept.",
        between=(0, 366 * 86_400),
        default=0.0,
    )
    retain_bytes: int = option(
        doc="The most bytes of acked events to keep; 0 sets no limit to `retain_seconds`.",
        between=(0, 2**50),
        default=0,
    )
    group_seconds: float = option(
        doc="How long the first event of a group waits for others before they are synced.",
        between=(0, 1),
        default=0.002,
    )
    group_bytes: int = option(
        doc="A group of this size waits no longer.", between=(1, 2**26), default=2**22
    )
    kafka: OutsideJournal | None = option(
        doc="Keep them in a topic of Kafka instead of on the disks of the nodes.",
        registered="journal",
        default=None,
    )
    encryption: JournalEncryption | None = option(
        doc="Keep their events encrypted on the disks of the nodes.", default=None
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.kafka is not None and self.encryption is not None:
            yield "encryption", "a journal in Kafka cannot be encrypted by flumeng: leave this out"


@dataclass(frozen=True, kw_only=True)
class FlowSpec:
    """A named pipeline with its guarantees."""

    needs_one_of: ClassVar[tuple[str, ...]] = branch.SOMEWHERE

    flow: str = option(doc="The flow's name.", check=check_flow_name, example="web-logs")
    sources: tuple[Component[SourceOptions], ...] = option(
        doc="Where events come from.", minimum=1, example='[tail: {paths: ["/var/log/app/*.log"]}]'
    )
    labels: Mapping[str, str] = option(
        doc="Labels by which commands select flows (`flow pause --label team=web`).",
        example="{team: web}",
        factory=dict,
    )
    place: Place = option(doc="Which nodes do the work.", default=Place())
    durability: Durability = option(
        doc="Where an event is when its sender is answered: synced to the node's disk (`disk`), "
        "written to it and synced about a second later (`spill`), held in memory (`memory`), or "
        "synced to the disks of several nodes (`replicated`).",
        default="disk",
    )
    replicas: Replicas = option(
        doc="The replicas of journals with `durability: replicated`.", default=Replicas()
    )
    journal: JournalOptions = option(
        doc="How the flow's journals are kept.", default=JournalOptions()
    )
    delivery: Delivery = option(
        doc="Whether the ack comes before the write, after it, or in one step with it.",
        default="at-least-once",
    )
    multiline: Multiline | None = option(
        doc="Lines that belong together become one event, before all filters.",
        example="{preset: java}",
        default=None,
    )
    filters: tuple[Component[FilterOptions], ...] = option(
        doc="The filters of the flow, in order. Beside a filter, `when: CONDITION` (Spark SQL) "
        "selects its events; all others bypass it, and have null in the columns it adds. "
        "`on_error: keep, drop or dead-letter` is the fate of events that it cannot process.",
        default=(),
    )
    sinks: tuple[Component[SinkOptions], ...] = option(
        doc="Where events go: every event into each of them. A flow has `sinks`, `branches` or "
        "both. With `isolated: true` beside it a sink is written at its own pace, by tasks of its "
        "own.",
        minimum=1,
        example="[files: {path: /data/app}]",
        default=(),
    )
    branches: tuple[Branch, ...] = option(
        doc="Branches for some of the events, after the filters, each with a condition, filters "
        "and sinks of its own.",
        minimum=1,
        default=(),
    )
    dead_letters: Component[SinkOptions] | None = option(
        doc="A sink for the events that a sink refuses for good, or that a filter with `on_error: "
        "dead-letter` cannot process, with `dead_reason`, `dead_place`, `dead_revision` and "
        "`dead_time`, in the same commit as all others. Without it the flow stops at an event that "
        "a sink refuses, and reports it. Beside a sink `files` in parquet or json, `keep: {days: "
        "30, bytes: 10 GiB}`, or one of the two, limits the age and size of dead letters: older "
        "files are deleted.",
        example="{files: {path: /data/dead, format: json}}",
        default=None,
    )
    batch: Batch = option(doc="When collected events are written.", default=Batch())
    lag: Lag = option(doc="How late events may be before it is a problem.", default=Lag())
    rollout: Rollout | None = option(
        doc="Give a new revision to a few tasks first, and roll back when one of them fails.",
        default=None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from branch.problems(self)
        if self.dead_letters is not None:
            options = self.dead_letters.options
            if self.dead_letters.keep and (
                options.dead_letter_files is None or options.unreadable_form
            ):
                yield (
                    "dead_letters.keep",
                    "expected a sink files in parquet or json with nested columns: delete other "
                    "dead letters in their own system",
                )
        else:
            for stage in self.stages:
                if isinstance(stage, FilterStage) and stage.makes_dead_letters:
                    yield (
                        f"{stage.path.rpartition('.')[0]}.on_error",
                        "the flow has no sink for dead letters: give it dead_letters",
                    )

    @cached_property
    def segments(self) -> tuple[Located, ...]:
        """The flow and all of its branches, depth first."""
        return tuple(Located(self).walk())

    @property
    def all_filters(self) -> tuple[Component[FilterOptions], ...]:
        return tuple(stage.part for stage in self.stages if isinstance(stage, FilterStage))

    @cached_property
    def stages(self) -> tuple[FlowStage, ...]:
        return stages_of(self)

    @cached_property
    def leaves(self) -> tuple[SinkStage, ...]:
        """All sinks in the order of their numbers."""
        return tuple(stage for stage in self.stages if isinstance(stage, SinkStage))

    @cached_property
    def all_sinks(self) -> tuple[Component[SinkOptions], ...]:
        """All sinks in the order of their numbers, then the sink for dead letters."""
        sinks = tuple(leaf.part for leaf in self.leaves)
        return sinks if self.dead_letters is None else (*sinks, self.dead_letters)

    @property
    def targets(self) -> tuple[Component[SinkOptions], ...]:
        """All sinks, with the members of each group instead of the group."""
        return tuple(part for sink in self.all_sinks for part in sink.options.members or (sink,))

    @property
    def pinned(self) -> tuple[Component[SourceOptions], ...]:
        return tuple(part for part in self.sources if part.options.placing == "pinned")

    @property
    def weighed(self) -> bool:
        """Whether a source has partitions whose offsets do not count events."""
        return any(part.options.weighed for part in self.partitioned)

    @property
    def partitioned(self) -> tuple[Component[SourceOptions], ...]:
        """The sources whose partitions a discovery task finds, and the journal in Kafka."""
        sources = tuple(part for part in self.sources if part.options.placing == "partitioned")
        if self.journal.kafka is None:
            return sources
        return (*sources, Component("source", "kafka", self.journal.kafka.source))

    @property
    def pollers(self) -> tuple[Component[Any], ...]:
        return tuple(part for part in self.partitioned if part.options.poll)

    @property
    def by_batch(self) -> bool:
        """Whether tasks decide each batch before writing: a target stores its number."""
        return any(sink.options.decided(self.delivery) for sink in self.all_sinks)

    @property
    def batch_seconds(self) -> float:
        if self.batch.seconds is not None:
            return self.batch.seconds
        size = self.journal.max_bytes
        ample = self.durability != "memory" if size is None else size >= AMPLE_JOURNAL_BYTES
        files = any(leaf.part.options.makes_files for leaf in self.leaves)
        return FILES_SECONDS if files and ample else OTHER_SECONDS

    @property
    def lag_limit_seconds(self) -> float:
        """The allowed age of the oldest event that is not in the sinks."""
        return max(self.lag.seconds, 3 * self.batch_seconds)
