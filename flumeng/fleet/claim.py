"""The claim on a site's ``/push``: one push at a time, without a session. It exists during a push.
A claim of an ended process of this host does not count; an operator can take over other claims."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from flumeng.control.queries import timestamps
from flumeng.control.zookeeper import ABSENT, Expected, Store
from flumeng.platform.errors import ConflictError
from zkschema import paths
from zkschema.records import Push, PushClaim

HasEnded = Callable[[str, int], bool]
"""Returns whether the process with that number in that boot has certainly ended."""


def is_held_by(push: Push, claim: PushClaim) -> bool:
    held = push.claim
    return held is not None and (held.push, held.boot, held.pid) == (
        claim.push,
        claim.boot,
        claim.pid,
    )


def why_refused(push: Push, claim: PushClaim, has_ended: HasEnded, *, take_over: bool) -> str:
    """Return a sentence about another push that runs; empty without one, or with ``take_over``."""
    held = push.claim
    if held is None or take_over or is_held_by(push, claim) or has_ended(held.boot, held.pid):
        return ""
    return (
        f"{held.who} pushes {held.push} (process {held.pid}, since "
        f"{timestamps.utc(held.since)} UTC): wait until it is done; if that process is gone for "
        "good, take over with --take-over"
    )


def take(
    store: Store,
    seen: tuple[Push, Expected] | None,
    claim: PushClaim,
    has_ended: HasEnded,
    *,
    take_over: bool,
) -> None:
    """Write the claim into a site whose ``/push`` was ``seen`` at a version (None: any).
    Idempotent. Raises ``ConflictError`` when another push has the claim, or ran since."""
    if seen is not None and not why_refused(seen[0], claim, has_ended, take_over=take_over):
        with contextlib.suppress(ConflictError):  # the re-read below decides
            store.write(paths.push(), replace(seen[0], claim=claim), seen[1])
            return
    stored = store.read(paths.push())
    push = stored.value if stored else Push()
    if is_held_by(push, claim):
        return
    why = why_refused(push, claim, has_ended, take_over=take_over)
    if why:
        raise ConflictError(why)
    if seen is not None and replace(push, claim=None) != replace(seen[0], claim=None):
        raise ConflictError("another push ran since the plan was made: plan again")
    store.write(paths.push(), replace(push, claim=claim), stored.version if stored else ABSENT)


def let_go(store: Store, claim: PushClaim) -> None:
    stored = store.read(paths.push())
    if stored is not None and is_held_by(stored.value, claim):
        with contextlib.suppress(ConflictError):  # another push took over
            store.write(paths.push(), replace(stored.value, claim=None), stored.version)
