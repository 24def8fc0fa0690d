"""The one table of all metrics, and the source of their page in the docs. Names follow Prometheus:
``flumeng_<area>_<quantity>_<unit>``, base units, ``_total`` for counters. Labels are bounded; every
sample also has the label ``process``. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from flumeng.platform.metrics.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram"]
FLOW = "flow"
LABELS = {
    FLOW: "the flow; `_other` stands for all beyond 200",
    "source": "the kind of source, as in the flow's text",
    "child": "the process that was started",
    "version": "the version of flumeng",
    "outcome": "how it ended",
    "state": "the state of the task",
    "kind": "its kind",
    "stage": "the part of the work",
    "cause": "the reason",
    "sink": "its place in the flow's text, with the names of branches",
    "filter": "its place in the flow's text, with the names of branches",
    "site": "the other site",
    "reader": "the flow there that reads",
    "branch": "its name, behind those of the branches that it is in",
}


@dataclass(frozen=True)
class Metric:
    """A declared metric. ``area``: the reporting processes. ``largest``: readings with equal labels
    are joined by maximum, not sum."""

    name: str
    kind: Kind
    area: str
    doc: str
    labels: tuple[str, ...] = ()
    largest: bool = False

    def of(self, value: float | Histogram, *labels: str) -> Reading:
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}"
        return Reading(self, value, labels)

    def join(self, value: float | Histogram, other: float | Histogram) -> float:
        assert not isinstance(value, Histogram), f"{self.name} has two readings"
        assert not isinstance(other, Histogram), f"{self.name} has two readings"
        return max(value, other) if self.largest else value + other


class Reading(NamedTuple):
    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()


METRICS: list[Metric] = []


def _metric(
    kind: Kind, name: str, area: str, doc: str, *labels: str, largest: bool = False
) -> Metric:
    metric = Metric(name, kind, area, doc, labels, largest)
    METRICS.append(metric)
    return metric


_counter = partial(_metric, "counter")
_gauge = partial(_metric, "gauge")
_histogram = partial(_metric, "histogram")


EVERY, ZOOKEEPER, NODE, INGEST, COLLECT, MASTER, STANDALONE, GATEWAY, DISCOVERY = (
    "every process",
    "master, node, collector",
    "node",
    "ingest worker",
    "collector",
    "master",
    "standalone",
    "gateway",
    "discovery process",
)


def _source_counter(name: str, doc: str) -> Metric:
    return _counter(name, INGEST, doc, FLOW, "source")


def _flow_counter(name: str, doc: str, *labels: str) -> Metric:
    return _counter(name, COLLECT, doc, FLOW, *labels)


def _flow_gauge(name: str, doc: str, area: str = COLLECT, *, largest: bool = False) -> Metric:
    return _gauge(name, area, doc, FLOW, largest=largest)


BUILD_INFO = _gauge("flumeng_build_info", EVERY, "Always 1; which flumeng this is.", "version")
TURN_AGE = _gauge(
    "flumeng_loop_age_seconds", EVERY, "The time since the last turn of the process's main loop."
)
READY = _gauge(
    "flumeng_ready", EVERY, "1 when the process and its dependencies are ready, as in /readyz."
)
_gauge("process_resident_memory_bytes", EVERY, "Resident memory size in bytes.")
_gauge("process_virtual_memory_bytes", EVERY, "Virtual memory size in bytes.")
_gauge("process_start_time_seconds", EVERY, "Start time of the process since unix epoch.")
_counter("process_cpu_seconds_total", EVERY, "Total user and system CPU time spent in seconds.")
_gauge("process_open_fds", EVERY, "Number of open file descriptors.")
_gauge("process_max_fds", EVERY, "Maximum number of open file descriptors.")
PROCESS_THREADS = _gauge("process_threads", EVERY, "Number of threads of the process.")

ZOOKEEPER_CONNECTED = _gauge(
    "flumeng_zookeeper_connected", ZOOKEEPER, "1 while the ZooKeeper session is certainly alive."
)
ZOOKEEPER_TRANSACTIONS = _counter(
    "flumeng_zookeeper_transactions_total",
    ZOOKEEPER,
    "Transactions; `conflict`: another writer was first, `unavailable`: the result is unknown.",
    "outcome",
)
ZOOKEEPER_SECONDS = _histogram(
    "flumeng_zookeeper_transaction_seconds", ZOOKEEPER, "How long transactions took."
)
ZOOKEEPER_READ = _counter("flumeng_zookeeper_znodes_read_total", ZOOKEEPER, "Znodes read.")

TICKS = _counter(
    "flumeng_master_ticks_total",
    MASTER,
    "Ticks of the loop; `conflict`: another master was first, `failed`: the master cannot plan.",
    "outcome",
)
PLAN_SECONDS = _histogram(
    "flumeng_master_plan_seconds", MASTER, "How long the planner took for a plan."
)
MOVES = _counter(
    "flumeng_master_moves_total",
    MASTER,
    "Tasks that got a node: they had none (`placed`), their node was away (`recovery`), or "
    "released them (`handoff`).",
    "kind",
)
ACTIONS = _counter(
    "flumeng_master_actions_total", MASTER, "Decisions that were carried out.", "kind"
)
RECORDS_SET_ASIDE = _gauge(
    "flumeng_master_records_set_aside", MASTER, "Records in ZooKeeper that cannot be read."
)
TROUBLES = _gauge(
    "flumeng_master_troubles",
    MASTER,
    "Flows and nodes with a problem of this master, as `flumeng status` lists them.",
)
FLOWS = _gauge("flumeng_master_flows", MASTER, "Flows that the master saw last.")
NODES_LIVE = _gauge("flumeng_master_nodes_live", MASTER, "Nodes that are registered and live.")
NODES_MISSING = _gauge(
    "flumeng_master_nodes_missing", MASTER, "Nodes that are registered and not live."
)

TASKS = _gauge(
    "flumeng_node_tasks", NODE, "Tasks that the node should run, or still runs.", "state"
)
CHILD_UP = _gauge(
    "flumeng_child_up",
    f"{NODE}, {STANDALONE}",
    "1 when the process that was started answered this scrape in time.",
    "child",
)
CHILD_HANGS = _counter(
    "flumeng_child_hangs_total",
    NODE,
    "How often the child was ended since it reported no progress.",
    "child",
)
CHILD_STARTS = _counter(
    "flumeng_child_starts_total",
    f"{NODE}, {STANDALONE}",
    "How often the process was started; more than 1 means that it ended and was started again.",
    "child",
)

INGEST_EVENTS = _source_counter("flumeng_ingest_events_total", "Events that were taken.")
INGEST_BYTES = _source_counter(
    "flumeng_ingest_bytes_total", "Bytes that were taken, as received, with framing."
)
INGEST_TRUNCATED = _source_counter(
    "flumeng_ingest_truncated_events_total", "Events that were too long and were cut."
)
INGEST_DISCARDED = _source_counter(
    "flumeng_ingest_discarded_bytes_total",
    "Received bytes that are in no event: the rest of messages that were too long, unfinished "
    "messages of connections that broke or were closed, and data that could not be stored.",
)
INGEST_MALFORMED = _source_counter(
    "flumeng_ingest_malformed_total", "Input that could not be split into events or read."
)
INGEST_REFUSED = _source_counter(
    "flumeng_ingest_refused_total",
    "Connections that were refused, and requests that were answered with 429 or 503.",
)
INGEST_UNAUTHORIZED = _source_counter(
    "flumeng_ingest_unauthorized_total",
    "Connections that were closed, and requests that were answered with 401 or 403, since their "
    "senders are not authorized.",
)
INGEST_UNDELIVERED = _source_counter(
    "flumeng_ingest_undelivered_requests_total",
    "Requests that were answered with 504: journaled, and not delivered in time.",
)
INGEST_IDLE = _source_counter(
    "flumeng_ingest_idle_connections_total",
    "Connections that were closed since nothing came for too long.",
)
INGEST_OVERFULL = _source_counter(
    "flumeng_ingest_overfull_connections_total",
    "Connections that were closed since unfinished messages took too much memory.",
)
INGEST_DROPPED = _source_counter(
    "flumeng_ingest_dropped_datagrams_total",
    "Datagrams that found the kernel's buffer full: they are lost.",
)
INGEST_SKIPPED = _source_counter(
    "flumeng_ingest_skipped_files_total", "Files that were not read, since they are compressed."
)
INGEST_CUT = _source_counter(
    "flumeng_ingest_cut_files_total",
    "Files that were truncated or rewritten, and no copy had their unread rest.",
)
INGEST_MISSED = _source_counter(
    "flumeng_ingest_missed_files_total",
    "Files that were gone or compressed before they were read to the end: lines are lost.",
)
INGEST_UNREAD = _gauge(
    "flumeng_ingest_unread_bytes",
    INGEST,
    "Bytes in followed files that are not taken yet.",
    FLOW,
    "source",
)
INGEST_HELD = _counter(
    "flumeng_ingest_held_seconds_total",
    INGEST,
    "Back-pressure: for how long nothing of the flow was taken, since its journal was behind "
    "or full, or the flow is choked.",
    FLOW,
    largest=True,
)
INGEST_HELD_AGE = _flow_gauge(
    "flumeng_ingest_hold_age_seconds",
    "For how long a source of the flow is held now; 0 while all of them take events. `flumeng flow "
    "counters` shows the reason.",
    INGEST,
    largest=True,
)
JOURNAL_BYTES = _flow_gauge(
    "flumeng_journal_bytes", "Bytes in the flow's journals on this node.", INGEST
)
JOURNAL_LIMIT = _flow_gauge(
    "flumeng_journal_limit_bytes",
    "The size at which a journal of the flow takes no more events until some are acked.",
    INGEST,
    largest=True,
)
JOURNAL_EVENTS = _flow_gauge(
    "flumeng_journal_events", "Events that the flow's journals keep on this node.", INGEST
)
JOURNAL_UNACKED = _flow_gauge(
    "flumeng_journal_unacked_events",
    "The lag in events: those in the flow's journals on this node that are in no sink yet.",
    INGEST,
)
JOURNAL_LAG_SECONDS = _flow_gauge(
    "flumeng_journal_lag_seconds",
    "The lag in time: how long the oldest event that is in no sink yet has waited, to within "
    "five seconds.",
    INGEST,
    largest=True,
)
JOURNAL_UNREADABLE = _flow_gauge(
    "flumeng_journal_unreadable_events",
    "Events after damage or a loss that is not accepted: readers stop before them.",
    INGEST,
)
JOURNALS = _gauge("flumeng_journals", INGEST, "Journals that the worker serves.")
JOURNALS_BROKEN = _gauge(
    "flumeng_journals_broken", INGEST, "Journals that could not be opened, or have failed."
)
JOURNAL_SYNC_SECONDS = _histogram(
    "flumeng_journal_sync_seconds", INGEST, "How long the disk took to sync a file of a journal."
)
JOURNAL_DISK_FREE = _gauge(
    "flumeng_journal_disk_free_bytes", INGEST, "Free bytes of the disk on which journals lie."
)

FLOW_LAG_EVENTS = _flow_gauge(
    "flumeng_flow_lag_events",
    "The lag in events of a flow, or of an isolated part (`FLOW~PART`), of any input: those "
    "between its acks and the ends of its partitions. Each object or poll counts as one.",
)
FLOW_LAG_SECONDS = _flow_gauge(
    "flumeng_flow_lag_seconds",
    "The lag in time of a flow, or of an isolated part: all events that arrived this long ago are "
    "delivered, or the end of a partition has been unknown for this long. At most a quarter too "
    "large. It restarts at 0 when a task moves to another node.",
    largest=True,
)
COLLECT_EVENTS = _flow_counter(
    "flumeng_collect_events_total", "Events that are in all sinks and acked."
)
COLLECT_DEAD_LETTERS = _flow_counter(
    "flumeng_collect_dead_letters_total",
    "Events that went to the flow's dead letters, since a sink refused them for good or a filter "
    "could not process them.",
)
COLLECT_LETTER_FILES_DELETED = _flow_counter(
    "flumeng_collect_dead_letter_files_deleted_total",
    "Files of dead letters that were older, or more, than the flow keeps (`keep`).",
)
COLLECT_GONE = _flow_counter(
    "flumeng_collect_gone_total",
    "Events that could not be read, deleted or damaged ones, and that were skipped as the flow "
    "allows; of objects, an estimate by their size.",
)
COLLECT_LOOPED = _flow_counter(
    "flumeng_collect_looped_total",
    "Events of another site that were dropped, since they had passed this site before.",
)
COLLECT_FAILED_EVENTS = _flow_counter(
    "flumeng_collect_filter_failed_total",
    "Events that a filter with `on_error: drop` could not process, and dropped.",
    "filter",
)
COLLECT_BRANCH_EVENTS = _flow_counter(
    "flumeng_collect_branch_events_total",
    "Events that went into a branch of the flow that has a condition.",
    "branch",
)
COLLECT_LINES_CLOSED = _flow_counter(
    "flumeng_collect_multiline_closed_total",
    "Events of several lines that did not end with the start of the next one; the cause is in "
    "their attribute `multiline_closed`.",
    "cause",
)
COLLECT_REFUSED = _flow_counter(
    "flumeng_collect_times_refused_total",
    "Events whose own time lies too far from their receipt (`ts_refused`), seen by `files` sinks.",
)
COLLECT_BATCHES = _flow_counter("flumeng_collect_batches_total", "Batches that were committed.")
COLLECT_LAST_SUCCESS = _flow_gauge(
    "flumeng_collect_last_success_timestamp_seconds",
    "When a batch was committed last, in seconds since the epoch; an idle flow commits none.",
    largest=True,
)
COLLECT_FAILURES = _flow_counter(
    "flumeng_collect_failures_total", "How often a task had to begin again, by cause.", "cause"
)
SINK_RETRIES = _flow_counter(
    "flumeng_sink_retries_total",
    "How often a batch has to be written again since the sink did not take it in time: its server "
    "is away, or overloaded. `flumeng flow show` has the last error.",
    "sink",
)
FLOW_LATENCY_SECONDS = _histogram(
    "flumeng_flow_latency_seconds",
    COLLECT,
    "How old events were when they were acked, counted from their receipt by a node, the time of "
    "their message in Kafka, the change of their object, or the time at which their poll was due. "
    "The events of a batch count by their mean.",
    FLOW,
)
SINK_WRITE_SECONDS = _histogram(
    "flumeng_sink_write_seconds",
    COLLECT,
    "How long a sink took for a split of a batch, without filters and reading; not of sinks that "
    "take DataFrames.",
    FLOW,
    "sink",
)
COLLECT_BATCH_EVENTS = _histogram(
    "flumeng_collect_batch_events", COLLECT, "How many events a batch had."
)
COLLECT_BATCH_SECONDS = _histogram(
    "flumeng_collect_batch_seconds",
    COLLECT,
    "How long a batch took: to wait for a slot, to be fetched, filtered and written (one Spark "
    "job, perhaps shared), to be committed.",
    "stage",
)
COLLECT_JOBS = _gauge("flumeng_collect_jobs", COLLECT, "Spark jobs that run now.")
COLLECT_WAITING = _gauge("flumeng_collect_waiting_tasks", COLLECT, "Tasks that wait for a slot.")
COLLECT_ACKS = _counter("flumeng_collect_acks_total", COLLECT, "Acks that were written.")
COLLECT_ACK_TRANSACTIONS = _counter(
    "flumeng_collect_ack_transactions_total", COLLECT, "Transactions in which acks were written."
)
GATEWAY_SENT = _counter(
    "flumeng_gateway_sent_bytes_total",
    GATEWAY,
    "Bytes of journals that other sites were sent.",
    "site",
    FLOW,
)
GATEWAY_READS = _gauge("flumeng_gateway_reads", GATEWAY, "Reads of other sites that run now.")


def _lease_gauge(name: str, doc: str) -> Metric:
    return _gauge(name, GATEWAY, doc, "site", "reader", FLOW, largest=True)


LEASE_TIME = _lease_gauge(
    "flumeng_lease_time_used_ratio",
    "The share of its `keep_seconds` for which a lease was not renewed; at 1 it ends.",
)
LEASE_ROOM = _lease_gauge(
    "flumeng_lease_room_used_ratio",
    "The largest share of a journal's `max_bytes` that unread events take; at 1 they are given up.",
)
LEASE_EVENTS = _lease_gauge("flumeng_lease_events", "Events that the reader has not read.")
LEASE_BYTES = _lease_gauge("flumeng_lease_bytes", "Bytes of these events.")
LEASE_LOST = _lease_gauge(
    "flumeng_lease_lost_events",
    "Events given up before the reader had read them, until `flumeng cursor acknowledge`.",
)


def _link_metric(kind: Kind, name: str, doc: str) -> Metric:
    return _metric(kind, name, DISCOVERY, doc, "site", FLOW, largest=kind == "gauge")


LINK_UP = _link_metric(
    "gauge", "flumeng_link_up", "1 while a gateway of the site that the flow reads answers."
)
LINK_DOWNS = _link_metric(
    "counter", "flumeng_link_downs_total", "How often no gateway answered any more."
)
LINK_ANSWER_SECONDS = _link_metric(
    "gauge", "flumeng_link_answer_seconds", "How long renewals of the lease take, smoothed."
)
LINK_TIME = _link_metric(
    "gauge",
    "flumeng_link_lease_time_used_ratio",
    "The share of `keep_seconds` since the lease was renewed; at 1 the site keeps nothing more.",
)
LINK_ROOM = _link_metric(
    "gauge",
    "flumeng_link_lease_room_used_ratio",
    "The share of a journal's room there that unread events take, as of the last renewal.",
)
LINK_LOST = _link_metric(
    "gauge",
    "flumeng_link_lost_events",
    "Events that the site gave up before they were read, until `flumeng cursor acknowledge`.",
)
SPARK_RUN_SECONDS = _flow_counter(
    "flumeng_flow_spark_run_seconds_total",
    "How long the reading, filters and sinks of written batches ran in Spark's tasks, added up.",
)
SPARK_CPU_SECONDS = _flow_counter(
    "flumeng_flow_spark_cpu_seconds_total",
    "Processor time of Python in that run time; that of the JVM is not in it.",
)
_gauge("flumeng_spark_process_resident_memory_bytes", COLLECT, "Resident memory of Spark's JVM.")
_gauge("flumeng_spark_process_virtual_memory_bytes", COLLECT, "Virtual memory of Spark's JVM.")
_gauge("flumeng_spark_process_start_time_seconds", COLLECT, "When Spark's JVM was started.")
_counter("flumeng_spark_process_cpu_seconds_total", COLLECT, "Processor time of Spark's JVM.")
_gauge("flumeng_spark_process_open_fds", COLLECT, "Open file descriptors of Spark's JVM.")
_gauge("flumeng_spark_process_max_fds", COLLECT, "The limit of open_fds.")


def to_markdown() -> str:
    lines = [
        "Every sample also has the label `process`: the process of the host that reports it "
        "(`master`, `node`, `ingest.0`, `collect`, `discover`, `gateway`, `standalone`). A "
        "histogram has `_bucket`, `_sum` and `_count`.",
        "",
        "| label | meaning |",
        "|---|---|",
        *(f"| `{name}` | {doc} |" for name, doc in LABELS.items()),
    ]
    for area in dict.fromkeys(metric.area for metric in METRICS):
        lines += ["", f"## {area.capitalize()}", ""]
        lines += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels)} | {m.doc} |"
            for m in METRICS
            if m.area == area
        ]
    return "\n".join(lines) + "\n"
