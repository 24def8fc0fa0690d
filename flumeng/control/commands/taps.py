"""Who looked at events of a flow: the audit has it, since they leave the cluster."""

from __future__ import annotations

from flumeng.control.commands import audit
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import ForbiddenError
from zkschema import records


def keep_tap(
    store: Store,
    name: str,
    *,
    at: str | None,
    where: str | None,
    author: str,
    reason: str,
    now: float,
) -> None:
    """Before the first event is shown. Raises what ``audit.commit`` raises; ForbiddenError where
    access lists are of a version that let no viewer add to the audit."""
    said = {"at": at, "where": where}
    words = [f" --{key} {value}" for key, value in said.items() if value is not None]
    command = f"flow tap {name}{''.join(words)}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    try:
        audit.commit(store, [], entry)
    except ForbiddenError as error:
        raise ForbiddenError(
            "a tap is kept in the audit, and the access list of /audit does not let this "
            "certificate add to it: an administrator has to run `flumeng schema verify --fix`"
        ) from error
