"""Commits that are decided and not finished, and the end of one that nobody can finish.

The acks of such a commit are written, so its events are in its files and nowhere else for the flow.
Collectors finish it by themselves, unless files of it were taken away from where they were staged:
then the flow stands still until the files are restored or a person gives them up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flumeng.errors import ConflictError, UserError
from flumeng.operations import audit
from flumeng.operations.flows import require_flow
from flumeng.spec.problems import nearest
from flumeng.store import ANY, Remove, Store, Unreadable, Versioned
from zkschema import paths, records


@dataclass(frozen=True)
class UnfinishedCommit:
    """Each file is a pair: where it was staged, and where it belongs. ``problem``: the record
    cannot be read, and why."""

    flow: str
    name: str
    files: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def task(self) -> str:
        return self.name.partition("@")[0]


@dataclass(frozen=True)
class Whereabouts:
    """Of a commit's files: those that are staged still, and those that are nowhere."""

    staged: tuple[str, ...]
    missing: tuple[str, ...]


def unfinished_commits(store: Store, flow: str | None = None) -> list[UnfinishedCommit]:
    """Those of one flow, or of all. Also what a collector is just about to finish is among them."""
    if flow is not None:
        require_flow(store, flow)
    flows = store.children(paths.all_commits()) if flow is None else [flow]
    wanted = [(name, commit) for name in flows for commit in store.children(paths.commits(name))]
    found = store.read_each([paths.commit(*one) for one in wanted])
    return [_unfinished(*one, record) for one, record in zip(wanted, found, strict=True) if record]


def whereabouts(commit: UnfinishedCommit, exists: Callable[[str], bool]) -> Whereabouts:
    """``exists`` tells whether there is a file; another host may see other files."""
    away = [(source, target) for source, target in commit.files if not exists(target)]
    staged = {source for source, _ in away if exists(source)}
    return Whereabouts(
        tuple(sorted(staged)), tuple(target for source, target in away if source not in staged)
    )


def drop_commit(
    store: Store,
    flow: str,
    name: str,
    exists: Callable[[str], bool],
    *,
    author: str,
    reason: str,
    now: float,
) -> Whereabouts:
    """Give up the commit's files that are nowhere, so that the flow goes on.

    Raises ``UserError`` when there is no such commit, ``ConflictError`` while a collector can still
    bring something of it to its place or nothing of it is missing, ``UnavailableError``.
    """
    known = {commit.name: commit for commit in unfinished_commits(store, flow)}
    if name not in known:
        hint = nearest(name, known) if known else "it has none that is unfinished"
        raise UserError(f'flow {flow} has no commit "{name}"; {hint}')
    found = whereabouts(known[name], exists)
    if found.staged:
        raise ConflictError(
            f"{found.staged[0]} is still staged: a collector brings it to its place; look again"
        )
    if not found.missing and not known[name].problem:
        raise ConflictError(
            f"all files of commit {name} are at their place, as this host sees: a collector "
            "finishes it by itself"
        )
    command = f"ack drop {flow} {name}: gave up {len(found.missing)} files"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    audit.commit(store, [Remove(paths.commit(flow, name), ANY)], entry)
    return found


def _unfinished(
    flow: str, name: str, found: Versioned[records.Commit] | Unreadable
) -> UnfinishedCommit:
    if isinstance(found, Unreadable):
        return UnfinishedCommit(flow, name, problem=str(found))
    return UnfinishedCommit(flow, name, found.value.files)
