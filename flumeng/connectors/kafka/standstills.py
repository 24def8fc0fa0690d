"""Messages to operators about a Kafka partition that stands still, with the remedy."""

from __future__ import annotations

from flumeng.connectors.api.ranged import Standstill
from flumeng.control.snapshot.partitions import label_of


def describe(standstill: Standstill) -> str:
    label, offset, acked = label_of(standstill.partition), standstill.offset, standstill.acked
    match standstill.kind:
        case "nonsense":
            return f"{label} stands still: {standstill.why}"
        case "lost" if standstill.why:
            return (
                f"the log of {label} was cut at offset {offset}, and {acked} is acked: another "
                f"leader of Kafka has written other messages from {offset} to {acked - 1}, which "
                "were not read; to read them: pause the flow, and `flumeng flow reset --to "
                f"{label}={offset} --partitions {standstill.partition}`; to pass over them: the "
                f"same with {label}={acked}, or say on_gone: earliest"
            )
        case "lost":
            return (
                f"{label} ends at offset {offset}, but {acked} is acked: Kafka has lost messages "
                "that were committed, or the ack was set too high; to go on at its end: pause the "
                "flow, and `flumeng flow reset --to latest`"
            )
        case "gone":
            return (
                f"{label} has nothing below offset {offset} any more, and only {acked} is acked: "
                "Kafka has deleted messages before they were read; to go on with what is left: "
                "pause the flow, and `flumeng flow reset --to earliest`, or say on_gone: earliest"
            )
        case "held" | "damaged":
            return (
                f"{label} stops at offset {offset}: {standstill.why}; it is tried again; to pass "
                "over it: pause the flow, and `flumeng flow reset --to "
                f"{label}=OFFSET --partitions {standstill.partition}`"
            )
        case "unanswered":
            return f"{label} waits at offset {offset}: {standstill.why}"
