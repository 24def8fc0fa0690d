"""Which data directory a node's name belongs to: the claim that tells a restart from a copy. Pure.

Each process that begins to work under a node's name makes a claim with a number higher than all
before and a token of its own: first on its disk, then in ``/nodes/N`` by compare-and-set.

1. A directory whose claim is behind that of ``/nodes/N``, or has its number and another token, is
   a copy or a backup: since it was made, another process has gone on with the journals.
2. A directory whose claim is ahead is that of a process that ended between its two writes, or
   ZooKeeper was brought back from an older export: it goes on.
3. A process that finds another claim than its own in ``/nodes/N``, and one that is not behind its
   own, has lost the name to another directory and stops.
"""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Claim:
    """``number`` 0: nobody has made any."""

    number: int = 0
    token: str = ""


class SupplantedError(UserError):
    """Another data directory has the node's name: this process has to stop."""


def next_claim(disk: Claim, known: Claim, token: str) -> Claim:
    """What a process of this directory claims, after the claim ``known`` in ``/nodes/N``.

    Raises SupplantedError when the directory is a copy.
    """
    if disk.number < known.number or (disk.number == known.number and disk.token != known.token):
        raise SupplantedError(
            f"this data directory is a copy, or older than the one in use since then: it was used "
            f"for start {disk.number} of the node, and start {known.number} was from another one"
        )
    ahead = disk.number > known.number + 1  # the tree was brought back
    return Claim((disk.number if ahead else known.number) + 1, token)


def require_own(own: Claim, known: Claim) -> bool:
    """Whether the claim in ``/nodes/N`` is still one's own; False when it is behind and is to be
    made again. Raises SupplantedError when another process has made it."""
    if own == known:
        return True
    if known.number >= own.number:
        raise SupplantedError(
            "another process has started under this node's name, from a copy of this data directory"
        )
    return False
