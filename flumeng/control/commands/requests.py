"""Requests with a key, which may be repeated and act once.

The audit entry of a change is committed with it, so its name carries the key and its record the
answer. A repetition reads the records to change, then looks for the entry, then commits. If the
first one committed before these reads, the entry is found; otherwise the commit conflicts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flumeng.control.commands.operator import Operator, Request
from flumeng.control.zookeeper import Put, ReadableStore, Refused, Store, Version, Versioned, Write
from flumeng.platform.errors import UserError
from zkschema import paths, records

KEPT_SECONDS = 86_400.0
"""How long a key counts, as long as the audit keeps the entry."""
ANSWER_BYTES = 4096
KEY_CHARACTERS = 32


class OtherBodyError(UserError):
    """The key was used before with another request."""


@dataclass(frozen=True)
class Transaction:
    """One transaction of a command. ``command`` and ``reason`` as in the audit; an empty command is
    committed without an entry."""

    writes: tuple[Write, ...]
    command: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Collector(Operator):
    """An operator whose commits are collected in ``transactions``, and not done. The ``store`` is
    an ``Unwritten`` one with the same list."""

    transactions: list[Transaction] = field(default_factory=list)

    @classmethod
    def of(cls, operator: Operator, reads: ReadableStore) -> Collector:
        """Return a collector that reads records and lists folders in ``reads``."""
        transactions: list[Transaction] = []
        store: Any = Unwritten(operator.store, reads, transactions)
        return cls(store, operator.author, operator.reason, operator.now, transactions=transactions)

    def commit(self, writes: Sequence[Write], command: str) -> None:
        self.transactions.append(Transaction(tuple(writes), command, self.reason))


class Unwritten:
    """A store whose transactions are collected, and not done. It reads in ``reads``."""

    def __init__(self, store: Store, reads: ReadableStore, transactions: list[Transaction]) -> None:
        self._store, self._transactions = store, transactions
        self.read, self.read_many, self.read_each = reads.read, reads.read_many, reads.read_each
        self.children, self.children_many = reads.children, reads.children_many

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self._transactions.append(Transaction(tuple(writes)))
        return [Version(0) for write in writes if isinstance(write, Put)]

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        for writes in transactions:
            self.commit(writes)
        return [None] * len(transactions)


@dataclass(frozen=True)
class Done:
    """A request that was carried out. ``commands``: as in the audit. ``answer`` is None if it was
    too large to be kept."""

    commands: tuple[str, ...]
    who: str
    reason: str
    time: float
    answer: Any


def digest(*texts: str) -> str:
    """Return a name for the texts, for the end of an entry's name."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:KEY_CHARACTERS]


def find(store: Store, request: Request, now: float) -> Done | None:
    """Return the result of an equal request; None if it has not ended. ``now``: seconds since
    the epoch. Raises OtherBodyError, UnavailableError."""
    return _done(entries(store, request.key, now), request)


def entries(store: Store, key: str, now: float) -> list[records.Audit]:
    """Return the entries of the key's request that still count, oldest first. One of the future
    counts too: the clock of its console was ahead, and the request must not act again."""
    names = [name for name in store.children(paths.audits()) if name.endswith(f"-{key}")]
    found = store.read_each([paths.audit(name) for name in names])
    kept = [entry.value for entry in found if isinstance(entry, Versioned)]
    return [
        entry for entry in kept if entry.request is not None and now - KEPT_SECONDS <= entry.time
    ]


def done_with(store: Store, key: str, now: float) -> Done | None:
    """Return the result of the request with this digest of a key; None if it has not ended."""
    return _done(entries(store, key, now), None)


def _done(found: Sequence[records.Audit], request: Request | None) -> Done | None:
    if request is not None and any(entry.request != request.body for entry in found):
        raise OtherBodyError(
            "this Idempotency-Key was used before for another request: use a new key"
        )
    last = next((entry for entry in found if entry.answer is not None), None)
    if last is None:
        return None
    commands = tuple(entry.command for entry in found)
    answer = json.loads(last.answer) if last.answer else None
    return Done(commands, last.who, last.reason, last.time, answer)


def carry_out(operator: Operator, transactions: Sequence[Transaction], answer: Any = None) -> None:
    """Commit the transactions in order. With ``operator.request`` the entry of the last one keeps
    ``answer``, unless it is None. Raises as ``Operator.commit``; ConflictError if an equal request
    changed the same meanwhile."""
    for number, each in enumerate(transactions, 1):
        if not each.command:
            operator.store.commit(each.writes)
            continue
        own = replace(operator, reason=each.reason)
        if operator.request and number == len(transactions) and answer is not None:
            own = replace(own, request=replace(operator.request, answer=_kept(answer)))
        own.commit(each.writes, each.command)


def _kept(answer: Any) -> str:
    text = json.dumps(answer, separators=(",", ":"))
    return text if len(text) <= ANSWER_BYTES else ""
