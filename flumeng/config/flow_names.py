"""Names of flows. An isolated part is prefixed with its flow: ``web~errors~http``."""

from __future__ import annotations

from collections.abc import Iterable

from flumeng.platform.options.patterns import check_name

PART = "~"
MOST_CHARACTERS = 200


def check_flow_name(text: str) -> None:
    for word in text.split(PART):
        check_name(word)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"expected at most {MOST_CHARACTERS} characters in all names together")


def part_name(flow: str, *words: str) -> str:
    """The part named by these branches, and the kind of a sink."""
    return PART.join((flow, *(word.replace("_", "-") for word in words)))


def whole_of(flow: str) -> str:
    """The flow of which this is a part, or itself."""
    return flow.partition(PART)[0]


def is_part(flow: str) -> bool:
    return PART in flow


def parts_among(flows: Iterable[str], flow: str) -> list[str]:
    """The parts of a flow among these, sorted; a part has none."""
    return sorted(name for name in flows if name.startswith(flow + PART) and not is_part(flow))


def beside(flow: str) -> tuple[str, ...]:
    """A sort key: parts follow their flow."""
    return tuple(flow.split(PART))


def why_not_applied(flow: str) -> str:
    """Empty for a flow that a person may apply."""
    return f"{flow} is an isolated part: apply its flow {whole_of(flow)}" if is_part(flow) else ""
