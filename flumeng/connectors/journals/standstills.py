"""What people are told of a journal that stands still, and what they do on its node."""

from __future__ import annotations

from flumeng.connectors.api.ranged import Standstill
from flumeng.events.journal_names import node_of


def describe(standstill: Standstill) -> str:
    """One sentence."""
    name, offset, node = standstill.partition, standstill.offset, node_of(standstill.partition)
    match standstill.kind:
        case "nonsense":
            return f"journal {name} stands still: {standstill.why}"
        case "lost":
            return (
                f"journal {name} ends at seq {offset}, but {standstill.acked} is acked: it has "
                f"lost events that were safe; on node {node}: `flumeng journal verify`"
            )
        case "gone":
            return (
                f"journal {name} keeps nothing below seq {offset}, and only {standstill.acked} is "
                "acked: its ack was lost, or its oldest segments were; to go on with what is "
                "there: `flumeng ack advance`"
            )
        case "held":
            return (
                f"journal {name} stops at seq {offset}, where events are lost, which nobody has "
                f"accepted; on node {node}: `flumeng journal repair --accept-loss`"
            )
        case "damaged":
            return (
                f"journal {name} stops at seq {offset}: {standstill.why}; on node {node}: "
                "`flumeng journal verify`, then `repair`"
            )
        case "unanswered":
            return f"journal {name} waits at seq {offset}: {standstill.why}"
