"""What masters write of nodes that are away: since when, and in the end that they are gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flumeng.plan.actions import Assign, Forget, MarkAway
from flumeng.plan.placement_index import PlacementIndex
from flumeng.state.snapshot import Snapshot


def marks(snapshot: Snapshot) -> list[MarkAway]:
    """Since when nodes are away, once for each, and that they are back."""
    found = []
    for name, node in snapshot.nodes.items():
        if not node.unmarked or node.set_aside:
            continue
        since = 0.0 if node.live else snapshot.now
        why = f"node {name} is back" if node.live else f"node {name} is away"
        record = replace(node.record, away_since=since)
        found.append(MarkAway(name, record, node.version, (why,)))
    return found


def forgets(snapshot: Snapshot, index: PlacementIndex, assigns: Iterable[Assign]) -> list[Forget]:
    """The nodes that are away for good and on which nothing is left: no task, no journal.

    ``assigns`` are carried out before.
    """
    expired = [name for name, node in snapshot.nodes.items() if node.expired]
    if not expired:
        return []
    told = {name: snapshot.nodes[name].assignment for name in expired}
    told.update((action.node, action.assignment) for action in assigns)
    holders = {
        holder
        for journal in snapshot.journals.values()
        for holder in (journal.node, journal.primary, *journal.in_sync)
    }
    return [
        Forget(name, snapshot.nodes[name].version, (f"node {name} is forgotten: long away",))
        for name in expired
        if name not in holders and not index.of_node(name) and not told[name].tasks
    ]
