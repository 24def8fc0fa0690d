"""The claim on a node's name: distinguishes a restarted data directory from a copy of it. Pure.

Each process writes a claim (a number higher than all before, and a random token) to its disk, then
to ``/nodes/N`` by compare-and-set.

1. A directory whose claim has a lower number than that of ``/nodes/N``, or the same number with
   another token, is a copy or a backup.
2. A directory whose claim has a higher number belongs to a process that ended between its two
   writes, or ZooKeeper was restored from an older export: it continues.
3. A process that finds another claim in ``/nodes/N``, whose number is not lower than its own, has
   lost the name and stops.
"""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Claim:
    """A process's claim on its node's name. ``number`` 0: none yet."""

    number: int = 0
    token: str = ""


class SupplantedError(UserError):
    """Another data directory has the node's name: this process has to stop."""


def next_claim(disk: Claim, saved: Claim, token: str) -> Claim:
    """Return a claim above that of ``/nodes/N``. Raises SupplantedError for a copied directory."""
    if disk.number < saved.number or (disk.number == saved.number and disk.token != saved.token):
        raise SupplantedError(
            "this data directory is a copy or a backup: the node's start number "
            f"{disk.number} was the last with it, and start {saved.number} used another directory"
        )
    ahead = disk.number > saved.number + 1  # the tree was restored from an export
    return Claim((disk.number if ahead else saved.number) + 1, token)


def require_own(own: Claim, saved: Claim) -> bool:
    """Return whether ``/nodes/N`` has this process's claim; False when it has an older one. Raises
    SupplantedError when another process has claimed the name since."""
    if own == saved:
        return True
    if saved.number >= own.number:
        raise SupplantedError(
            "another process has started under this node's name, from a copy of this data directory"
        )
    return False
