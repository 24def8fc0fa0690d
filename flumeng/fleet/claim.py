"""Who pushes: one at a time in a site, without a session that is held.

Who begins writes its name into each site's ``/push`` that it is about to change, and takes it out
when it is done. A process of this host that has certainly ended holds nothing; of one on another
host only a person can tell that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from flumeng.control.queries import moments
from flumeng.control.zookeeper import ABSENT, Expected, Store
from flumeng.platform.errors import ConflictError
from zkschema import paths
from zkschema.records import Push, PushClaim

HasEnded = Callable[[str, int], bool]
"""Whether the process with that number in that boot has certainly ended."""


def is_held_by(push: Push, claim: PushClaim) -> bool:
    """Whether it is this process that pushes, and as this push."""
    held = push.claim
    return held is not None and (held.push, held.boot, held.pid) == (
        claim.push,
        claim.boot,
        claim.pid,
    )


def why_refused(push: Push, claim: PushClaim, has_ended: HasEnded, *, take_over: bool) -> str:
    """Who else pushes now; empty when nobody does, or when it is taken over."""
    held = push.claim
    if held is None or take_over or is_held_by(push, claim) or has_ended(held.boot, held.pid):
        return ""
    return (
        f"{held.who} pushes {held.push} (process {held.pid}, since {moments.utc(held.since)} UTC): "
        "wait until that is done; when that process is gone for good, take over with --take-over"
    )


def take(
    store: Store,
    seen: tuple[Push, Expected] | None,
    claim: PushClaim,
    has_ended: HasEnded,
    *,
    take_over: bool,
) -> None:
    """Write the claim into a site whose ``/push`` was ``seen`` at a version (None: whatever it
    is); nothing to do when it is there.

    Raises ``ConflictError`` when somebody else pushes, or has pushed since. May be called again
    when its outcome is unknown.
    """
    if seen is not None and not why_refused(seen[0], claim, has_ended, take_over=take_over):
        with contextlib.suppress(ConflictError):  # it is looked at below
            store.write(paths.push(), replace(seen[0], claim=claim), seen[1])
            return
    found = store.read(paths.push())
    push = found.value if found else Push()
    if is_held_by(push, claim):
        return
    why = why_refused(push, claim, has_ended, take_over=take_over)
    if why:
        raise ConflictError(why)
    if seen is not None and replace(push, claim=None) != replace(seen[0], claim=None):
        raise ConflictError("somebody has pushed since the plan was made: plan again")
    store.write(paths.push(), replace(push, claim=claim), found.version if found else ABSENT)


def let_go(store: Store, claim: PushClaim) -> None:
    """Take the claim out when it is there still."""
    found = store.read(paths.push())
    if found is not None and is_held_by(found.value, claim):
        with contextlib.suppress(ConflictError):  # somebody took over
            store.write(paths.push(), replace(found.value, claim=None), found.version)
