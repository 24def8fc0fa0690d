"""The claim on a site's ``/push``: one push at a time, without a session. It is written before and
removed after a push. The claim of an ended process of this host does not count; that of another
host only an operator can take over."""

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
    held = push.claim
    return held is not None and (held.push, held.boot, held.pid) == (
        claim.push,
        claim.boot,
        claim.pid,
    )


def why_refused(push: Push, claim: PushClaim, has_ended: HasEnded, *, take_over: bool) -> str:
    """Who else pushes now; empty when nobody does, or with ``take_over``."""
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
    """Write the claim into a site whose ``/push`` was ``seen`` at a version (None: any). Safe to
    repeat. Raises ``ConflictError`` when somebody else pushes, or has pushed since."""
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
    """Remove the claim if it is still there."""
    found = store.read(paths.push())
    if found is not None and is_held_by(found.value, claim):
        with contextlib.suppress(ConflictError):  # somebody took over
            store.write(paths.push(), replace(found.value, claim=None), found.version)
