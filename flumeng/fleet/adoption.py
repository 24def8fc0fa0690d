"""Resources that somebody made by hand are put under the care of pushes, as they are."""

from __future__ import annotations

from collections.abc import Collection

from flumeng.control.zookeeper import Store
from flumeng.fleet import site_state, writes
from flumeng.fleet.claim import HasEnded, why_refused
from flumeng.fleet.comparison import Change
from flumeng.fleet.resources import FLOW, digest, kind_of
from flumeng.fleet.site_copy import SiteCopy, copy_site
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.problems import nearest
from zkschema.records import PushClaim, PushSource


def adopt(
    store: Store,
    keys: Collection[str],
    source: PushSource,
    claim: PushClaim,
    has_ended: HasEnded,
) -> list[str]:
    """The keys that were adopted; without any given, those of all flows that no push made.

    What was changed by hand since a push is adopted as it is now. Raises ``UserError`` for a key
    that there is not, ``ConflictError`` while somebody pushes, ``UnavailableError``.
    """
    adopted: list[str] = []
    while True:
        copy = copy_site(store)
        changes = _changes(copy, keys)
        if not changes:
            return adopted
        push = site_state.push_of(copy)
        why = why_refused(push, claim, has_ended, take_over=False)
        if why:
            raise ConflictError(why)
        part = writes.first_part(copy, changes, push, source, "adopt")
        transaction = writes.transaction(copy, part, push, source, "adopt")
        store.commit(transaction)
        adopted += [change.key for change in part]


def _changes(copy: SiteCopy, keys: Collection[str]) -> list[Change]:
    why = site_state.why_not_pushed(copy)
    if why:
        raise UserError(why)
    state = site_state.state_of(copy)
    unknown = [key for key in keys if key not in state.resources]
    if unknown:
        raise UserError(f'there is no "{unknown[0]}"; {nearest(unknown[0], state.resources)}')
    chosen = keys or [
        key for key in state.resources if kind_of(key) == FLOW and key not in state.owned
    ]
    return [
        Change(key, "take", value, value, state.owned.get(key), digest(value))
        for key in chosen
        for value in [state.resources[key]]
        if state.owned.get(key) != digest(value)
    ]
