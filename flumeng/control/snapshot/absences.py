"""How long nodes are away: for the grace period, for long, or for good.

The grace period is measured by what this process has seen; a node that was back meanwhile has
reported its status. For what takes longer a master writes down
since when a node is away, once, so that masters which come and go agree. That is a wall clock:
it decides what counts as missing and what is forgotten, never who owns anything.
"""

from __future__ import annotations

from dataclasses import replace

from flumeng.control.snapshot.snapshot import NodeView
from flumeng.control.snapshot.timers import Moments
from zkschema.records import Cluster

MARK_SECONDS = 300.0
"""A node that is away for less, as for a restart, costs no write."""


class Absences:
    """Asked once in each look."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments

    def mark(self, nodes: dict[str, NodeView], cluster: Cluster, now: float) -> dict[str, NodeView]:
        """The nodes, each with how long it is away; the same mapping when nothing has changed."""
        missed = {name: node.status_version for name, node in nodes.items() if not node.live}
        lost = self._moments.lasting("missed", missed, cluster.grace_seconds)
        new = {name: at for name, at in missed.items() if not nodes[name].record.away_since}
        unmarked = self._moments.lasting("away", new, MARK_SECONDS)
        changed = {}
        for name, node in nodes.items():
            since = node.record.away_since
            if node.live and not since and not node.unmarked:
                continue
            after = replace(
                node,
                lost=name in lost,
                unmarked=bool(since) if node.live else name in unmarked,
                long_gone=self._is_past(node, now, cluster.maintenance_limits.window_seconds),
                expired=self._is_past(node, now, cluster.forget_after_seconds),
            )
            if after != node:
                changed[name] = after
        return {**nodes, **changed} if changed else nodes

    def _is_past(self, node: NodeView, now: float, limit_seconds: float) -> bool:
        """Whether the node is away for so long; 0 is no limit."""
        since = node.record.away_since
        if node.live or not since or not limit_seconds:
            return False
        left = since + limit_seconds - now
        if left > 0:
            self._moments.look_in(left)
        return left <= 0
