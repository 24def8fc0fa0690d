"""Who looked at events of a flow: the audit has it, since they leave the cluster."""

from __future__ import annotations

from flumeng.operations import audit
from flumeng.store import Store
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
    """Before the first event is shown. Raises what ``audit.commit`` raises."""
    said = {"at": at, "where": where}
    words = [f" --{key} {value}" for key, value in said.items() if value is not None]
    command = f"flow tap {name}{''.join(words)}"
    audit.commit(store, [], records.Audit(who=author, command=command, reason=reason, time=now))
