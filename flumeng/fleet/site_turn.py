"""Changes one site in a push: writes the changes, watches until the site is well, releases the
claim. Each step checks which work is done, so it can be repeated after a lost connection or by
another process. A resource is written only while its present value is the planned one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flumeng.control.commands.chains import composed_with
from flumeng.control.queries import conditions
from flumeng.control.zookeeper import Store, Versioned
from flumeng.fleet import claim as claims
from flumeng.fleet import site_state, writes
from flumeng.fleet.comparison import Change
from flumeng.fleet.inventory import Site
from flumeng.fleet.site_copy import Shape, SiteCopy, copy_site, reread
from flumeng.platform.errors import (
    ConflictError,
    FlumengError,
    ForbiddenError,
    UnavailableError,
    UserError,
)
from zkschema import paths
from zkschema.records import Push, PushClaim, PushSource

R = TypeVar("R")

RETRY_SECONDS = 0.5
ATTEMPTS = 10
LOOKS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
"""Waits before successive checks of a site; the last one repeats."""
SOAK_LOOKS = 10
HOLD_SECONDS = 10.0
"""The connection is closed before a wait that is longer than this."""

Health = Callable[[SiteCopy], Mapping[str, str]]
"""Returns the problems of a site: a sentence by stable name."""


@dataclass(frozen=True)
class Clocks:
    """Clocks. ``now``: seconds since the epoch, for display; ``monotonic``: seconds."""

    now: Callable[[], float]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


class Link:
    """A reconnecting connection. ``connect`` raises ``UnavailableError`` after its time limit."""

    def __init__(self, site: Site, connect: Callable[[Site], Store], clocks: Clocks) -> None:
        self._site = site
        self._connect = connect
        self._clocks = clocks
        self._store: Store | None = None

    def do(self, step: Callable[[Store], R]) -> R:
        """Return the step's result. The step is repeated when the connection breaks: it must be
        idempotent. Raises ``UnavailableError`` after the site's time limit, ``ForbiddenError``."""
        deadline = self._clocks.monotonic() + self._site.turn_seconds
        while True:
            try:
                if self._store is None:
                    self._store = self._connect(self._site)
                return step(self._store)
            except UnavailableError as error:
                self.close()
                if isinstance(error, ForbiddenError) or self._clocks.monotonic() >= deadline:
                    raise
                self._clocks.sleep(RETRY_SECONDS)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


@dataclass(frozen=True)
class Task:
    """A site's changes. ``verb`` as in ``PushEntry``; ``shape``: the site's paths, if known."""

    site: Site
    changes: tuple[Change, ...]
    verb: str
    source: PushSource
    claim: PushClaim
    settle_seconds: float
    soak_seconds: float
    shape: Shape | None = None


class Turn:
    """The change of a site. ``touched``: the site has, or may have, writes of this push."""

    def __init__(
        self, task: Task, link: Link, health: Health, clocks: Clocks, tell: Callable[[str], None]
    ) -> None:
        self.touched = False
        self._task = task
        self._link = link
        self._health = health
        self._clocks = clocks
        self._tell = tell
        self._baseline: frozenset[str] = frozenset()
        self._shape = task.shape
        self._unseen: set[str] = set()
        self._seen: Versioned[Push] | None = None

    def write(self) -> None:
        """Write all changes. Raises ConflictError when a resource differs from the plan, another
        push took over, or nothing may be changed now."""
        refused = 0
        while True:
            try:
                if self._link.do(self._write_part):
                    return
            except _Lost as error:
                refused += 1
                if refused == ATTEMPTS:
                    raise ConflictError(str(error)) from error
                self._clocks.sleep(LOOKS_SECONDS[0])

    def watch(self, settled: Callable[[], None]) -> None:
        """Wait until the site was well for its soak time: it runs the changes without new problems.
        Call ``settled`` when it first is. Raises ``FlumengError`` after the time limit, and when
        the site cannot become well."""
        task = self._task
        deadline = self._clocks.monotonic() + task.settle_seconds + task.soak_seconds
        well_since: float | None = None
        reported: Sequence[str] = ()
        looks, has_settled = 0, False
        wait = LOOKS_SECONDS[0]
        while True:
            self._clocks.sleep(wait)
            missing = self._link.do(lambda store: self._missing(self._read(store)))
            now = self._clocks.monotonic()
            if not missing and not has_settled:
                settled()
                has_settled = True
            well_since = None if missing else now if well_since is None else well_since
            if well_since is not None and now - well_since >= task.soak_seconds:
                return
            if now >= deadline:
                raise FlumengError(
                    f"the site was not well within {task.settle_seconds + task.soak_seconds:g} s: "
                    + ("; ".join(missing) or f"it was well for less than {task.soak_seconds:g} s")
                )
            if missing and missing != reported:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                self._tell(f"waits: {missing[0]}{more}")
            reported = missing
            looks += 1
            wait = LOOKS_SECONDS[min(looks, len(LOOKS_SECONDS) - 1)]
            if well_since is not None:
                wait = max(wait, task.soak_seconds / SOAK_LOOKS)
                wait = min(wait, well_since + task.soak_seconds - now)
            if wait > HOLD_SECONDS:
                self._link.close()

    def end(self, why: str = "") -> None:
        """Release the site as done, or as failed when there is a reason ``why``."""
        self._link.do(lambda store: self._end(store, why))

    def close(self) -> None:
        self._link.close()

    def _write_part(self, store: Store) -> bool:
        copy = self._read(store)
        push = self._own_push(copy)
        self._begin(copy, push)
        changes = remaining(self._task.changes, copy)
        if not changes:
            return True
        not_now = site_state.why_not_now(copy)
        if not_now:
            raise ConflictError(not_now)
        baseline = tuple(sorted(self._baseline))
        push = replace(push, state="applying", why="", baseline=baseline)
        how = (push, self._task.source, self._task.verb)
        part = writes.first_part(copy, changes, *how)
        transaction = writes.transaction(copy, part, *how)
        before, self.touched = self.touched, True  # also when the reply is lost
        try:
            writes.make_folders(store, part)
            store.commit(transaction)
        except ConflictError as error:
            self.touched = before
            raise _Lost(str(error)) from error
        except UserError:
            self.touched = before  # refused before anything was sent
            raise
        self._tell(f"{len(part)} of {len(changes)} changes are written")
        return len(part) == len(changes)

    def _read(self, store: Store) -> SiteCopy:
        """Read as little as possible; after a stale read the write fails."""
        copy = copy_site(store) if self._shape is None else reread(store, self._shape)
        self._shape = copy.shape
        self._seen = copy.read(paths.push())
        return copy

    def _own_push(self, copy: SiteCopy) -> Push:
        """Return the site's push record. Raises ``ConflictError`` when this push lost the claim."""
        why = site_state.why_not_pushed(copy)
        if why:
            raise ConflictError(why)
        push = site_state.push_of(copy)
        if not claims.is_held_by(push, self._task.claim):
            held = push.claim
            raise ConflictError(
                f"{held.who} took over the push" if held else "the claim of the push was removed"
            )
        return push

    def _begin(self, copy: SiteCopy, push: Push) -> None:
        """Set ``touched`` if this push wrote before, and the known problems; an unfinished push
        keeps those from before its first write."""
        if push.source is not None and push.source.push == self._task.source.push:
            self.touched = True
        if push.state == "applied":
            self._baseline = self._baseline or frozenset(self._health(copy))
        else:
            self._baseline = frozenset(push.baseline)

    def _missing(self, copy: SiteCopy) -> list[str]:
        self._own_push(copy)
        lines: list[str] = []
        applied = list(writes.texts_of(self._task.changes))
        for name in (*applied, *composed_with(copy, applied)):
            flow = copy.read(paths.flow(name))
            if flow is None or flow.value.state == "running":
                lines += conditions.flow_rolled_out(copy, name)
            elif name not in self._unseen:
                self._unseen.add(name)
                self._tell(
                    f"flow {name} is {flow.value.state}: the push cannot see it run before it is "
                    "resumed"
                )
        worse = self._health(copy)
        lines += [what for about, what in worse.items() if about not in self._baseline]
        return list(dict.fromkeys(lines))

    def _end(self, store: Store, why: str) -> None:
        """Record the result and release the claim, unless another push took over."""
        stored, self._seen = self._seen or store.read(paths.push()), None
        if stored is None or not claims.is_held_by(stored.value, self._task.claim):
            return
        push = replace(stored.value, claim=None)
        if not why:
            push = replace(push, source=self._task.source, state="applied", why="", baseline=())
        elif self.touched:
            push = replace(push, state="failed", why=why)
        try:
            store.write(paths.push(), push, stored.version)
        except ConflictError:
            self._end(store, why)


class _Lost(ConflictError):  # noqa: N818  a compare-and-set, to be looked at again
    """A compare-and-set failed: another writer was first."""


def remaining(changes: Sequence[Change], copy: SiteCopy) -> list[Change]:
    """Return the changes not yet made. Raises ``ConflictError`` if a resource has neither the value
    before its change nor that after."""
    state = site_state.state_of(copy)
    left = []
    for change in changes:
        there = (state.resources.get(change.key), state.owned.get(change.key))
        unconfirmed = change.verb == "confirm" and change.key in state.returned
        if there == (change.after, change.owned_after) and not unconfirmed:
            continue
        if there != (change.before, change.owned_before):
            raise ConflictError(f"{change.key} was changed meanwhile: plan again")
        left.append(change)
    return left
