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
        raise ValueError(f"expected at most {MOST_CHARACTERS} characters, including ~")


def part_name(flow: str, *words: str) -> str:
    """Return the name of an isolated part: ``words`` are its branches, and the kind of a sink."""
    return PART.join((flow, *(word.replace("_", "-") for word in words)))


def whole_of(flow: str) -> str:
    """Return the flow whose isolated part this is, or the flow itself."""
    return flow.partition(PART)[0]


def is_part(flow: str) -> bool:
    return PART in flow


def parts_among(flows: Iterable[str], flow: str) -> list[str]:
    """Return the parts of ``flow`` among ``flows``, sorted; a part has no parts."""
    return sorted(name for name in flows if name.startswith(flow + PART) and not is_part(flow))


def beside(flow: str) -> tuple[str, ...]:
    """Return a sort key by which parts follow their flow."""
    return tuple(flow.split(PART))


def why_not_applied(flow: str) -> str:
    """Return why a person may not apply this flow, or ""."""
    return f"{flow} is an isolated part: apply its flow {whole_of(flow)}" if is_part(flow) else ""
