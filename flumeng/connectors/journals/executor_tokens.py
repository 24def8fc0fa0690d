"""Admits executors to journals by a token per range and a certificate, useless without a token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from flumeng.journal.serving.proof import Proof
from flumeng.journal.serving.tokens import Signer
from flumeng.platform.security import credentials, process
from flumeng.platform.security.credentials import Keystore


@dataclass(frozen=True)
class ExecutorTokens:
    """Signs tokens with ``own``; executors prove to hold ``executor``. Methods raise UserError."""

    own: Keystore
    executor: Keystore

    def proof(self) -> Proof:
        return Proof.of(process.loaded.of(self.executor), self._signer().certificates)

    def token(self, journal: str, start: int, end: int) -> str:
        return self._signer().token(journal, start, end)

    def _signer(self) -> Signer:
        return _signer_of(process.loaded.of(self.own))


def of_process() -> ExecutorTokens | None:
    """Return this collector's tokens; None in an open cluster. Raises UserError."""
    own, executor = process.keystore(), credentials.keystore_of("executor")
    if own is None or executor is None:
        return None
    executor_tokens = ExecutorTokens(own, executor)
    executor_tokens.proof()
    return executor_tokens


_signer_of = lru_cache(maxsize=2)(Signer)
