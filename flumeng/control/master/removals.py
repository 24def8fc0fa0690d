"""Removes deleted flows and expired cursors in bounded portions, one per tick, and forgotten nodes
at once. The planner repeats the action until the last znode is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice

from flumeng.control.commands import chains, lease_breaks
from flumeng.control.commands.nodes import removal
from flumeng.control.planner.actions import Drop, Forget, Release
from flumeng.control.snapshot import leases
from flumeng.control.zookeeper import ANY, Check, Path, Remove, Store, Version, Write
from flumeng.platform.errors import ConflictError, UserError
from zkschema import bootstrap, paths, table

PORTION = 500
LEAST = 20
"""Operations charged to an action besides its removals, for its reads."""
TRANSACTION_REMOVALS = 100
FOLDERS_AT_ONCE = 100


class Removals:
    """Removals over many ticks. ``unfinished``: this tick left znodes. ``_listings``: remaining
    znodes by last znode and its version."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listings: dict[tuple[str, Version], Iterator[Path]] = {}
        self.next_tick()

    def next_tick(self) -> None:
        """Begin a new portion; drop listings that the last tick did not continue."""
        self._left = PORTION
        self._before, self._listings = self._listings, {}
        self._cursors: dict[str, list[Path]] | None = None
        self.unfinished = False

    def carry_out(self, action: Drop | Forget | Release) -> bool:
        """Remove as much as the portion allows; return whether everything is removed. Raises
        ConflictError, ForbiddenError, UserError, UnavailableError."""
        self._left -= LEAST
        if self._left <= 0:
            done = False
        elif isinstance(action, Drop):
            done = self._drop(action.flow)
        elif isinstance(action, Release):
            done = self._release(action)
        else:
            self._store.commit(removal(self._store, action.node, action.expect))
            done = True
        self.unfinished = self.unfinished or not done
        return done

    def _drop(self, flow: str) -> bool:
        """Remove a flow, children first, so that an interrupted removal can continue. Without acks
        the flow seems undelivered, so it is first marked as discarded. Every transaction checks the
        version, so that a stalled master does not remove a later flow of that name."""
        record = self._store.read(paths.flow(flow))
        if record is None or record.value.state != "deleted":
            raise ConflictError(f"flow {flow} is no longer deleted")
        version = record.version
        if not record.value.discard:
            marked = replace(record.value, discard=True)
            version = self._store.write(paths.flow(flow), marked, version)
        return self._remove(paths.flow(flow), version, lambda: self._znodes_of(flow))

    def _znodes_of(self, flow: str) -> Iterator[Path]:
        if self._cursors is None:
            self._cursors = chains.cursors_at_others(self._store)
        tops = (*self._cursors.get(flow, ()), *bootstrap.flow_tops(flow))
        there = [top for top in tops if self._store.exists(top)]
        return chain.from_iterable(children_first(self._store, [top]) for top in there)

    def _release(self, action: Release) -> bool:
        """Remove an expired cursor, its lease last, so that an interrupted removal can continue."""
        folder = paths.cursor(action.flow, action.cursor)
        lease = paths.lease(action.flow, action.cursor)
        if lease_breaks.is_of_site(action.cursor):
            self._record_break(action)

        def znodes() -> Iterator[Path]:
            there = [folder] if self._store.exists(folder) else []
            return chain(children_first(self._store, there), [lease])

        return self._remove(lease, action.expect, znodes)

    def _record_break(self, action: Release) -> None:
        path = paths.lease(action.flow, action.cursor)
        lease = self._store.read(path)
        if lease is None or lease.version != action.expect:
            raise ConflictError(f"the lease {path} was renewed")
        if lease.value.keep_seconds == leases.ENDED_SECONDS:  # its reader was deleted
            return
        why = f"the lease was not renewed for {lease.value.keep_seconds:g} s"
        write = lease_breaks.ended(
            self._store, (action.flow, action.cursor), lease, why, leases.until(lease)
        )
        if write is not None:
            self._store.commit([Check(path, action.expect), write])

    def _remove(self, guard: Path, version: Version, znodes: Callable[[], Iterator[Path]]) -> bool:
        """Remove a portion of ``znodes`` in order, while the last of them, ``guard``, has this
        version; return whether none is left."""
        key = str(guard), version
        listing = self._before.pop(key, None) or znodes()
        portion = list(islice(listing, self._left))
        self._left -= len(portion)
        transactions: list[list[Write]] = [
            [Check(guard, version), *(Remove(path, ANY) for path in some)]
            for some in _batched(portion, TRANSACTION_REMOVALS)
        ]
        for refused in self._store.commit_each(transactions):
            if refused is not None:
                raise refused
        done = bool(portion) and portion[-1] == guard
        if not done:
            self._listings[key] = listing
        return done


def children_first(store: Store, tops: Iterable[Path]) -> Iterator[Path]:
    """Yield the znodes at and below ``tops``, children first. Raises UserError for unknown ones."""
    for some in _batched(tops, FOLDERS_AT_ONCE):
        folders = [path for path in some if table.may_have_children(path.row)]
        listed = dict(zip(map(str, folders), store.children_many(folders), strict=True))
        for path in some:
            below = (_parsed(f"{path}/{name}") for name in listed.get(str(path), ()))
            yield from children_first(store, below)
            yield path


def _parsed(text: str) -> Path:
    row = table.find(text)
    names = row.matches(text) if row else None
    if row is None or names is None:
        raise UserError(f"unknown znode {text} blocks the removal of its flow: remove it")
    return row(*names)


def _batched(znodes: Iterable[Path], size: int) -> Iterator[list[Path]]:
    rest = iter(znodes)
    while some := list(islice(rest, size)):
        yield some
