"""Who looked at events of a flow: the audit has it, since they leave the cluster."""

from __future__ import annotations

from flumeng.control.commands.operator import Operator
from flumeng.platform.errors import ForbiddenError


def keep_tap(operator: Operator, name: str, *, at: str | None, where: str | None) -> None:
    """Before the first event is shown. Raises what ``Operator.commit`` raises; ForbiddenError where
    access lists are of a version that let no viewer add to the audit."""
    said = {"at": at, "where": where}
    words = [f" --{key} {value}" for key, value in said.items() if value is not None]
    command = f"flow tap {name}{''.join(words)}"
    try:
        operator.commit([], command)
    except ForbiddenError as error:
        raise ForbiddenError(
            "a tap is kept in the audit, and the access list of /audit does not let this "
            "certificate add to it: an administrator has to run `flumeng schema verify --fix`"
        ) from error
