"""Delivers a written batch: its files, acks and intent in the right order. At-least-once publishes
files, then moves acks; at-most-once moved them before. Exactly-once decides both together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.batch import Batch, Pipeline
from flumeng.agent.collector.commit import Commits
from flumeng.agent.collector.intents import Intents
from flumeng.agent.collector.outcome import places_of, written_to
from flumeng.connectors.api.ranged import Progress, Range
from flumeng.connectors.api.sink import BatchId, Written
from zkschema.records import Intent


class Delivery:
    """Delivers the batches of a claim, until an error. ``repeat``: the open intent, until its batch
    begins, before all others. ``repeating``: whether that batch is not acked yet."""

    def __init__(
        self, pipeline: Pipeline, acks: Acks, commits: Commits, intents: Intents, revision: int
    ) -> None:
        self._pipeline = pipeline
        self._acks = acks
        self._commits = commits
        self._intents = intents
        self._revision = revision
        self.repeat = intents.open
        self.repeating = self.repeat is not None

    def take_repeat(self, unread: Sequence[Range]) -> tuple[BatchId, int]:
        """Return identity and splits of the batch to repeat, which leaves out ``unread``."""
        assert self.repeat is not None
        self._intents.leave_out(unread)
        repeat, self.repeat = self.repeat, None
        return _identity(repeat), repeat.splits

    def decide(self, ranges: Sequence[Range], splits: int, unread: Sequence[Range]) -> BatchId:
        return _identity(self._intents.decide(ranges, self._revision, splits, unread))

    def commit(self, batch: Batch, joined: Mapping[str, Progress] | None) -> None:
        """Deliver a written batch. ``joined``: its new acks; None: the ends of its ranges."""
        outcome = batch.written
        files = [move for part in outcome for move in part.files]
        spare = self._pipeline.spare_roots - {root for part in outcome for root in part.staged}
        staging = [directory for root, directory in batch.staging.items() if root not in spare]
        also = batch.also
        if self._pipeline.spec.delivery == "exactly-once":
            self._commit_once(batch, staging, files, joined)
        else:
            self._commits.publish(staging, files)
            self._show(outcome, None)
            if batch.identity is not None:
                self._acks.advance(batch.ranges, [self._intents.end(), *also], joined)
                self._end_intent()
            elif self._pipeline.spec.delivery == "at-least-once":
                self._acks.advance(batch.ranges, also, joined)
        left = {root for part in outcome for root in part.abandoned} & spare
        self._commits.discard(batch.staging[root] for root in sorted(left))

    def _commit_once(
        self,
        batch: Batch,
        staging: Sequence[str],
        files: Sequence[tuple[str, str]],
        joined: Mapping[str, Progress] | None,
    ) -> None:
        record = self._commits.record(self._acks.epoch, staging, files)
        identity = batch.identity
        if identity is None and any(part.commit for part in batch.written):
            splits = 1 if batch.gaps else self._pipeline.splits(batch.ranges, batch.scale)
            unread = [gap.piece for gap in batch.skipped]
            identity = self.decide(batch.ranges, splits, unread)
        self._show(batch.written, identity)
        if identity is None:
            self._commits.commit(self._acks, batch.ranges, record, batch.also, joined)
        else:
            also = [self._intents.end(), *batch.also]
            self._commits.commit(self._acks, batch.ranges, record, also, joined)
            self._end_intent()

    def _show(self, outcome: Sequence[Written], identity: BatchId | None) -> None:
        for path, part in zip(places_of(self._pipeline.spec), outcome, strict=False):
            if part.commit is not None:
                with written_to(path):
                    part.commit(identity)

    def _end_intent(self) -> None:
        self._intents.ended()
        self.repeating = False


def _identity(decided: Intent) -> BatchId:
    return BatchId(decided.series, decided.number)
