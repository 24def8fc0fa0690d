"""Commits that are decided and not finished, and the end of one that nobody can finish.

The acks of such a commit are written, so its events are in its files and nowhere else for the flow.
Collectors finish it by themselves, unless files of it were taken away from where they were staged:
then its task stands still until the files are restored or a person gives them up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flumeng.control.commands.flow_records import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Remove, Store, Unreadable, Version, Versioned
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records


@dataclass(frozen=True)
class UnfinishedCommit:
    """Each file is a pair: where it was staged, and where it belongs; ``staging`` are the
    directories. ``problem``: the record cannot be read, and why; ``newer``: by this flumeng."""

    flow: str
    name: str
    files: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    newer: bool = False
    staging: tuple[str, ...] = ()

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


def require_lost(
    store: Store, flow: str, name: str, exists: Callable[[str], bool]
) -> tuple[Whereabouts, Version]:
    """Where the files of a commit are that no collector can finish, and its version.

    Raises ``UserError`` when there is no such commit, ``ConflictError`` while a collector can still
    bring something of it to its place, nothing of it is missing, or this process cannot tell.
    """
    known = {commit.name: commit for commit in unfinished_commits(store, flow)}
    (record,) = store.read_each([paths.commit(flow, name)]) if name in known else (None,)
    if record is None:
        hint = nearest(name, known) if known else "it has none that is unfinished"
        raise UserError(f'flow {flow} has no commit "{name}"; {hint}')
    commit = _unfinished(flow, name, record)
    if commit.newer:
        raise ConflictError(
            f"{commit.problem}: collectors of that flumeng can finish it, or run its `ack drop`"
        )
    for root in sorted({_root(staging) for staging in commit.staging}):
        if not exists(root):
            raise ConflictError(
                f"this host does not see {root}: run it where the sink's storage is, or make that "
                "directory there if it was removed"
            )
    found = whereabouts(commit, exists)
    if found.staged:
        raise ConflictError(
            f"{found.staged[0]} is still staged: a collector brings it to its place; look again"
        )
    if not found.missing and not commit.problem:
        raise ConflictError(
            f"all files of commit {name} are at their place, as this host sees: a collector "
            "finishes it by itself"
        )
    return found, record.version


def drop_commit(
    operator: Operator, flow: str, name: str, exists: Callable[[str], bool]
) -> Whereabouts:
    """Give up the commit's files that are nowhere, so that the flow goes on.

    Raises as ``require_lost``, and ``UnavailableError``.
    """
    found, version = require_lost(operator.store, flow, name, exists)
    command = f"ack drop {flow} {name}: gave up {len(found.missing)} files"
    operator.commit([Remove(paths.commit(flow, name), version)], command)
    return found


def _root(staging: str) -> str:
    """The directory in which all batches of the sink are staged."""
    place, mark, query = staging.partition("?")
    return f"{place.rpartition('/')[0]}{mark}{query}"


def _unfinished(
    flow: str, name: str, found: Versioned[records.Commit] | Unreadable
) -> UnfinishedCommit:
    if isinstance(found, Unreadable):
        return UnfinishedCommit(flow, name, problem=str(found), newer=found.newer)
    return UnfinishedCommit(flow, name, found.value.files, staging=found.value.staging)
