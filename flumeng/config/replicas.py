"""Options for the number and placement of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Replicas:
    """How journals of `durability: replicated` are kept. Senders are answered when every replica in
    sync has their events on its disk."""

    copies: int = option(
        doc="The number of nodes that hold each journal, with the one that takes the events.",
        between=(1, 5),
        default=2,
    )
    min_in_sync: int = option(
        doc="With fewer replicas in sync than this a journal takes no events, and senders wait.",
        between=(1, 5),
        default=2,
    )
    spread: Literal["zone", "host"] = option(
        doc="Keep the replicas in other zones than the first as far as such have nodes (`zone`), "
        "or only on other hosts (`host`).",
        default="zone",
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.min_in_sync > self.copies:
            yield (
                "min_in_sync",
                f"expected at most {self.copies}, which is `copies`: with fewer replicas no event "
                "is ever taken; set `min_in_sync` too, or more `copies`",
            )
