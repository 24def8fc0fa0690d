"""Whether a viewer may commit a transaction, as the access lists of a secured cluster would say."""

from __future__ import annotations

from collections.abc import Iterable

from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.requests import Transaction
from flumeng.control.zookeeper import ABSENT, Check, Put, Write
from flumeng.platform.errors import NotAllowedError
from zkschema import table


def require_all(viewer: Viewer, transactions: Iterable[Transaction]) -> None:
    """Raises NotAllowedError for the first znode that the viewer may not write. The console's own
    certificate could: so it checks the access lists as ZooKeeper would for the viewer's."""
    for transaction in transactions:
        for write in transaction.writes:
            if not isinstance(write, Check) and not _may(viewer, write):
                raise NotAllowedError(
                    f"{viewer.name} may not write {write.path}, which this changes too: ask an "
                    "administrator for the role operator of all flows"
                )


def _may(viewer: Viewer, write: Write) -> bool:
    if "viewer" in (viewer.role, viewer.console.role):
        return False
    if viewer.role == "admin":
        return True
    names = dict(
        zip(
            table.PLACEHOLDER.findall(write.path.row.pattern),
            write.path.row.matches(write.path.path) or (),
            strict=True,
        )
    )
    if isinstance(write, Put) and write.expect is not ABSENT:
        return _is_among(viewer, write.path.row.access.write, names)
    folder = table.find(write.path.path.rpartition("/")[0])
    if folder is None:
        return False
    access = folder.access.create if isinstance(write, Put) else folder.access.delete
    return _is_among(viewer, access, names)


def _is_among(viewer: Viewer, roles: str, names: dict[str, str]) -> bool:
    """Whether one of the roles of ``Access`` is the viewer's; ``names``: those in the path."""
    has = set(roles.split())
    if viewer.flows is None:
        return bool(has & {"operator", "any-operator", "own-operator"})
    return "any-operator" in has or ("own-operator" in has and _is_own(viewer, names))


def _is_own(viewer: Viewer, names: dict[str, str]) -> bool:
    flow = names.get("{flow}") or names.get("{journal}", "").partition(".")[0]
    return bool(flow) and viewer.may_change(flow)
