"""Rehearses and does actions, for the API and the pages: rights, revisions, keys, the audit.

An action acts on a store that collects its transactions. So a rehearsal is the action without a
commit, with the same errors; and every write is seen before the first one is committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from flumeng.console.actions.action import Action, Answer, Field, Foreseen, Given
from flumeng.console.actions.rights import require_all
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands import requests
from flumeng.control.commands.operator import Request
from flumeng.control.commands.requests import Collector, Done, Transaction
from flumeng.control.zookeeper import Check, Put, ReadableStore, Version, Versioned
from flumeng.platform.errors import ConflictError, FlumengError, UserError
from zkschema import paths, records


class PreconditionError(ConflictError):
    """The flow is at another revision than ``If-Match`` names. ``revision``: 0 if there is none."""

    def __init__(self, flow: str, expected: int, revision: int) -> None:
        self.flow, self.expected, self.revision = flow, expected, revision
        state = f"is at revision {revision}" if revision else "does not exist"
        super().__init__(f"flow {flow} {state}, not at revision {expected}: look at it again")


class FieldsError(UserError):
    """Some fields are missing or wrong; ``problems`` has a sentence by field."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(f"{name}: {why}" for name, why in problems.items()))


@dataclass(frozen=True)
class Rehearsal:
    """The effects of an action. ``commands``: as the audit will show them; empty: no change.
    ``revision``: of the flow now, 0 if there is none; None if it concerns no flow. ``answer``: as
    the action would give."""

    foreseen: Foreseen
    commands: Sequence[str]
    revision: int | None
    answer: Any


@dataclass(frozen=True)
class Outcome:
    """``answer``: the JSON of the command; None if an earlier one was too large to be kept.
    ``revision``: of the flow afterwards. ``commands``: as in the audit."""

    answer: Any
    revision: int | None
    commands: Sequence[str]


@dataclass(frozen=True)
class _Prepared:
    transactions: Sequence[Transaction]
    answer: Answer
    revision: int | None
    revision_after: int | None


def read_fields(fields: Sequence[Field], given: Mapping[str, Any], *, text: bool = False) -> Given:
    """Return the checked values. ``text``: those of a form, where an empty text is no value. Raises
    FieldsError with all problems."""
    problems: dict[str, str] = {}
    values: dict[str, Any] = {}
    known = {each.name for each in fields}
    for name in given.keys() - known:
        problems[name] = f"there is no such field: there are {', '.join(sorted(known)) or 'none'}"
    for each in fields:
        value = given.get(each.name)
        if value is None or (text and value == ""):
            if each.required:
                problems[each.name] = "it is required"
            continue
        try:
            values[each.name] = each.read(value, text=text)
        except ValueError as error:
            problems[each.name] = str(error)
    if problems:
        raise FieldsError(problems)
    return values


@dataclass(frozen=True)
class Change:
    """A viewer's wish for an action. ``if_revision``: the only revision of the flow to act on; 0 if
    there must be none."""

    console: Console
    viewer: Viewer
    action: Action
    given: Given
    reason: str = ""
    if_revision: int | None = None

    @property
    def flow(self) -> str | None:
        return self.action.flow(self.given)

    def rehearse(self, store: ReadableStore) -> Rehearsal:
        """Return the effects of the action. Raises as ``do``, and writes nothing."""
        self._require_right()
        prepared = self._prepare(store)
        foreseen = prepared.answer.foreseen
        if foreseen is None:
            assert self.action.foresee is not None, f"{self.action.name} foresees nothing"
            foreseen = self.action.foresee(self.console, store, self.given)
        commands = [each.command for each in prepared.transactions if each.command]
        return Rehearsal(foreseen, commands, prepared.revision, prepared.answer.value)

    def do(self, key: str = "") -> Outcome:
        """Do the action; with a ``key`` only once. Raises NotAllowedError, PreconditionError,
        OtherBodyError, and as the command."""
        self._require_right()
        fields = json.dumps({**self.given, "reason": self.reason}, sort_keys=True)
        body = requests.digest(self.action.name, fields)
        request = Request(key_digest(self.viewer, key), body) if key else None
        store = self.console.store
        if done := _found(self.console, request):
            return _again(done)
        try:
            prepared = self._prepare(store)
            if done := _found(self.console, request):
                return _again(done)
            outcome = self._carry_out(prepared, request)
        except FlumengError as error:
            with suppress(FlumengError):
                if done := _found(self.console, request):
                    return _again(done)
            if isinstance(error, ConflictError):
                self._require_revision(store)
            raise
        self.console.pictures.refresh()
        return outcome

    def _require_right(self) -> None:
        if self.action.changes:
            self.viewer.require(self.flow)

    def _require_revision(self, store: ReadableStore) -> None:
        """Raises PreconditionError if the flow is at another revision than ``if_revision``."""
        if self.flow is None or self.if_revision is None:
            return
        current = store.read(paths.flow(self.flow))
        revision = current.value.revision if current else 0
        if revision != self.if_revision:
            raise PreconditionError(self.flow, self.if_revision, revision)

    def _prepare(self, store: ReadableStore) -> _Prepared:
        flow = self.flow
        current = store.read(paths.flow(flow)) if flow is not None else None
        revision = None if flow is None else current.value.revision if current else 0
        if flow is not None and self.if_revision not in (None, revision):
            raise PreconditionError(flow, self.if_revision or 0, revision or 0)
        collector = Collector.of(self.console.operator(self.viewer, self.reason), store)
        answer = self.action.act(self.console, collector, self.given)
        transactions = collector.transactions
        require_all(self.viewer, transactions)
        if flow is not None and self.if_revision is not None and transactions:
            transactions = self._at(store, flow, current, transactions)
        return _Prepared(transactions, answer, revision, _after(flow, transactions, revision))

    def _at(
        self,
        store: ReadableStore,
        flow: str,
        current: Versioned[records.Flow] | None,
        transactions: Sequence[Transaction],
    ) -> list[Transaction]:
        """Let the first transaction fail unless the flow's record is as it was when its revision
        was compared."""
        first, *rest = transactions
        own = [write for write in first.writes if str(write.path) == str(paths.flow(flow))]
        seen = current.version if current else None
        for write in own:
            expect = write.version if isinstance(write, Check) else write.expect
            if isinstance(expect, Version) and expect != seen:
                self._require_revision(store)
                raise ConflictError(f"flow {flow} was changed meanwhile: look at it again")
        if not own and current is not None:
            first = replace(first, writes=(Check(paths.flow(flow), current.version), *first.writes))
        return [first, *rest]

    def _carry_out(self, prepared: _Prepared, request: Request | None) -> Outcome:
        operator = replace(self.console.operator(self.viewer, self.reason), request=request)
        answer, transactions = prepared.answer, prepared.transactions
        kept = {"answer": answer.value, "revision": prepared.revision_after}
        if not transactions and request:
            command = " ".join(self.action.words(self.given))
            transactions = [Transaction((), f"{command} (unchanged)", self.reason)]
        if answer.first:
            answer.first()
        requests.carry_out(operator, transactions, None if answer.then else kept)
        if answer.then:
            answer.then()
            requests.carry_out(operator, [Transaction((), answer.noted, self.reason)], kept)
        commands = [each.command for each in transactions if each.command]
        return Outcome(answer.value, prepared.revision_after, commands)


def key_digest(viewer: Viewer, key: str) -> str:
    """Return the digest of a viewer's key; two viewers may use the same key."""
    return requests.digest(viewer.name, key)


def _found(console: Console, request: Request | None) -> Done | None:
    return requests.find(console.store, request, console.clock()) if request else None


def _again(done: Done) -> Outcome:
    kept = done.answer if isinstance(done.answer, dict) else {}
    return Outcome(kept.get("answer"), kept.get("revision"), done.commands)


def _after(
    flow: str | None, transactions: Sequence[Transaction], revision: int | None
) -> int | None:
    for write in (write for transaction in transactions for write in transaction.writes):
        value = write.value if isinstance(write, Put) and write.path.name == flow else None
        if isinstance(value, records.Flow):
            revision = value.revision
    return revision
