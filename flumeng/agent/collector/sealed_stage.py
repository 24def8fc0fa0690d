"""The stage of one run, for a plan of Spark that serves many runs: to plan again takes Spark longer
than a small batch. The stage goes to tasks in a local property of the job. Spark writes these into
event logs and stages hold secrets, so it is encrypted, by AES-GCM. Only this process and the
functions of its plans have the key, and Spark writes no functions into event logs. Executors of a
cluster may lack the cipher: there each run has a plan of its own."""

from __future__ import annotations

import base64
import io
import os
import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.core.broadcast import Broadcast

from flumeng.events.lazy_batch import Stage

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PROPERTY = "flumeng.stage"
NONCE_BYTES = 12
KEY_BYTES = 16


@dataclass(frozen=True)
class Pickled:
    """A pickled stage. ``broadcasts``: whether it has a broadcast variable. Spark sends such a
    variable along with the function of a new plan only."""

    stage: bytes
    broadcasts: bool

    @classmethod
    def of(cls, stage: object) -> Pickled:
        pickler = _Pickler()
        pickler.dump(stage)
        return cls(pickler.written.getvalue(), pickler.broadcasts)


class _Pickler(pickle.Pickler):
    def __init__(self) -> None:
        self.written = io.BytesIO()
        self.broadcasts = False
        super().__init__(self.written)

    def reducer_override(self, part: object) -> Any:
        self.broadcasts |= isinstance(part, Broadcast)
        return NotImplemented


@dataclass(frozen=True)
class SealedStage:
    """Runs the stage that the job of its task was ``given``."""

    key: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES), repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        text = None if task is None else task.getLocalProperty(PROPERTY)
        assert text is not None, "the job has no stage"
        sealed = base64.b64decode(text)
        opened = _cipher(self.key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
        stage: Stage = pickle.loads(zlib.decompress(opened))  # our own driver has sealed it
        return stage(batches)

    @contextmanager
    def given(self, context: SparkContext, stage: bytes) -> Iterator[None]:
        """Give a pickled stage to the jobs that this thread starts within the context."""
        nonce = os.urandom(NONCE_BYTES)
        packed = zlib.compress(stage, 1)
        sealed = nonce + _cipher(self.key).encrypt(nonce, packed, None)
        context.setLocalProperty(PROPERTY, base64.b64encode(sealed).decode("ascii"))
        try:
            yield
        finally:
            context.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers import aead  # noqa: PLC0415  executors may lack it

    return aead.AESGCM(key)
