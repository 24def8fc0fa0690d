"""The examples in the README of flumeng-flume are outputs of the commands."""

from __future__ import annotations

import re
from pathlib import Path

from flumeng.config import check_flow
from flumeng_flume.ng import channels, flows, interceptors, sinks, sources
from flumeng_flume.og import flows as og

TOP = Path(__file__).parents[3]
PAGE = (TOP / "packages" / "flumeng-flume" / "README.md").read_text()
HOW_TO = (TOP / "docs" / "how-to" / "from-flume.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_of_two_tiers_becomes_the_flow_that_is_shown() -> None:
    web, collector = blocks("properties")
    (shown,) = blocks("yaml")
    found = flows.translate({"web.properties": web, "collector.properties": collector}, {})
    assert [flow.text for flow in found.flows] == [shown]
    said = [
        "\t".join((p.file, str(p.line), p.subject, one.outcome, one.message))
        for one in found.findings
        for p in [one.place]
        if one.outcome != "mapped"
    ]
    assert re.findall(r"^(\w+\.properties\t.*)$", PAGE, re.MULTILINE) == said
    counts = [found.count("mapped"), found.count("approximately"), found.count("not mapped")]
    total = "1 flow; {} mapped, {} approximately, {} not mapped".format(*counts)
    assert total in PAGE
    assert total in HOW_TO
    excerpt = re.findall(r"^ *(\w+\.properties\t.*)$", HOW_TO, re.MULTILINE)
    assert excerpt == [line for line in said if line in excerpt] != []
    assert f"has all {sum(counts)} of them" in PAGE


def test_the_example_of_nodes_becomes_one_flow() -> None:
    (nodes,) = blocks("flume")
    (flow,) = og.translate({"nodes": nodes}).flows
    spec = check_flow(flow.text)
    assert spec.place.ingest.labels == {"flume": "web"}
    assert (spec.durability, spec.delivery, spec.batch.seconds) == ("disk", "at-least-once", 60)


def test_every_type_with_a_short_name_is_on_the_page() -> None:
    for table in (sources.ROWS, channels.ROWS, sinks.ROWS, interceptors.ROWS, sinks.UNKNOWN):
        for name in table:
            assert "." in name or name in ("uuid", "morphline") or f"`{name}`" in PAGE, name
