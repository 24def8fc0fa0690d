"""How far a task is behind while it is handed over from node to node, at a steady rate.

The cluster of ``takeover``, with a standby and batches of a second. Again and again the task is
moved: its owner drains, which is to finish its batch and let go, and the standby takes over. The
next turn begins when the owner of before stands by. Meanwhile the lag is
sampled all the time: what the journal holds above the ack. It is told in batches: the events of a
second, by which a task that gathers and writes one batch after the other is behind anyway.
"""

from __future__ import annotations

import threading
import time
from math import inf
from statistics import median

from benches.takeover import COLLECTORS, RATE, TASK, Cluster, cluster_of, until
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.tasks import move_task
from flumeng.journal.serving.client import JournalClient
from zkschema import paths

BATCH_SECONDS = 1.0
SAMPLE_SECONDS = 0.02
STEADY_SECONDS = 10.0


class Sampler(threading.Thread):
    """``lags``: moment and events above the ack."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.lags: list[tuple[float, int]] = []
        self.enough = threading.Event()
        self._cluster = cluster

    def run(self) -> None:
        live = self._cluster.store.read(paths.live_node("i0"))
        assert live is not None
        with JournalClient(live.value.addresses[0]) as client:
            while not self.enough.wait(SAMPLE_SECONDS):
                acked = self._cluster.ack().offset
                (position,) = client.positions().values()
                self.lags.append((time.monotonic(), position.safe - acked))

    @property
    def last(self) -> float:
        return self.lags[-1][1] if self.lags else inf

    def between(self, began: float, ended: float) -> list[float]:
        """The lags of that time, in batches."""
        return [
            lag / (RATE * BATCH_SECONDS) for moment, lag in self.lags if began <= moment <= ended
        ]


def run(handovers: int = 50) -> dict[str, object]:
    """Batches by which the task is behind: steadily, and at the worst of each hand-over."""
    with cluster_of(2, BATCH_SECONDS) as cluster:
        sampler = Sampler(cluster)
        sampler.start()
        until(lambda: any(map(cluster.stands_by, COLLECTORS)), "a standby")
        until(lambda: sampler.last < 2 * RATE * BATCH_SECONDS, "the end of the backlog")
        time.sleep(STEADY_SECONDS)
        steady = sampler.between(time.monotonic() - STEADY_SECONDS, time.monotonic())
        turns = [_hand_over(cluster, sampler) for _ in range(handovers)]
        sampler.enough.set()
        sampler.join()
    worst = sorted(max(lags) for lags, _ in turns)
    seconds = sorted(seconds for _, seconds in turns)
    return {
        "handovers": handovers,
        "samples": len(sampler.lags),
        "lag_batches_steady_p50": round(median(steady), 2),
        "lag_batches_steady_worst": round(max(steady), 2),
        "lag_batches_p50": round(median(worst), 2),
        "lag_batches_worst": round(worst[-1], 2),
        "handovers_above_3_batches": sum(lag > 3 for lag in worst),
        "handover_ms_p50": round(1000 * median(seconds)),
        "handover_ms_worst": round(1000 * seconds[-1]),
    }


def _hand_over(cluster: Cluster, sampler: Sampler) -> tuple[list[float], float]:
    """The lags until a batch after the first one of the new owner is acked, and in how many seconds
    that first one was."""
    task = cluster.task()
    assert task is not None
    assert task.node is not None
    node, epoch = task.node, task.epoch
    (other,) = {*COLLECTORS} - {node}
    until(lambda: cluster.stands_by(other), f"{other} to stand by")
    began = time.monotonic()
    move_task(Operator(cluster.store, "bench", "", time.time()), f"bench/{TASK}", other)
    until(lambda: cluster.ack().epoch > epoch, "a claim")
    claimed = cluster.ack().offset
    until(lambda: cluster.ack().offset > claimed, "a commit")
    seconds = time.monotonic() - began
    time.sleep(2 * BATCH_SECONDS)
    return sampler.between(began, time.monotonic()), seconds
