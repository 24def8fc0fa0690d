"""Any configuration of Flume: each flow that is made of it is valid, and each property is accounted
for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flumeng.config import check_flow
from flumeng.platform.errors import UserError
from flumeng_flume.findings import Imported
from flumeng_flume.ng import channels, flows, interceptors, sinks, sources
from flumeng_flume.og import flows as og
from flumeng_flume.og.decorators import ROWS as DECORATORS
from flumeng_flume.og.sinks import ROWS as OG_SINKS
from flumeng_flume.og.sources import HOPS
from flumeng_flume.og.sources import ROWS as OG_SOURCES

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Found = tuple[str, dict[str, str]]
VALUES = st.sampled_from(
    ["", "0", "1", "-5", "99999999999999999999", "true", "false", "localhost", "a:1,b:2", "/a/b",
     "rel/ative", "/a/%Y-%m-%d/%{x}/%{host}", "hdfs://nn/%D/%q/%{t}", "^(a+)+$", "(\\\\w+) (\\\\d)",
     "${UNKNOWN}", "é\\u00e9", "{x}", "'", "\\\"", "NEW YORK", "gzip", "c1 c2", "c1", "x y",
     "tail -F /var/log/a", "http://h:1/", "Europe/Berlin", "DataStream", "avro_event", "%"]
)  # fmt: skip


def properties_of(table: dict[str, set[str]]) -> st.SearchStrategy[Found]:
    def of(kind: str) -> st.SearchStrategy[Found]:
        names = sorted(table[kind]) or ["x"]
        return st.tuples(
            st.just(kind), st.dictionaries(st.sampled_from(names), VALUES, max_size=12)
        )

    return st.sampled_from(sorted(table)).flatmap(of)


def names_of(rows: dict[str, object], extra: dict[str, set[str]]) -> dict[str, set[str]]:
    return {
        kind: {name.replace("*", "x") for name in getattr(row, "answers", {})} | {"port", "odd"}
        for kind, row in rows.items()
    } | extra


SOURCES = properties_of(names_of(dict(sources.ROWS), {"org.example.Own": {"x"}}))
CHANNELS = properties_of(names_of(dict(channels.ROWS), {"org.example.Own": {"x"}}))
SINKS = properties_of(names_of(dict(sinks.ROWS), {"hive": {"x"}}))
INTERCEPTED = ["key", "value", "regex", "excludeEvents", "searchPattern", "replaceString"]
INTERCEPTED += ["withName", "serializers", "serializers.x.name", "serializers.x.pattern"]
INTERCEPTORS = properties_of({kind: {*INTERCEPTED} for kind in interceptors.ROWS})
SELECTORS = st.dictionaries(st.sampled_from(["type", "header", "mapping.a", "optional"]), VALUES)


@pytest.mark.slow
@SLOW
@given(
    st.lists(st.tuples(SOURCES, st.lists(INTERCEPTORS, max_size=3), SELECTORS), max_size=3),
    st.lists(CHANNELS, min_size=1, max_size=3),
    st.lists(SINKS, max_size=3),
    st.randoms(use_true_random=False),
)
def test_flows_of_any_agent_are_valid(
    sent: list[tuple[Found, list[Found], dict[str, str]]],
    kept: list[Found],
    written: list[Found],
    random: Random,
) -> None:
    lines = [
        f"a.sources = {' '.join(f'r{n}' for n in range(len(sent)))} ",
        f"a.channels = {' '.join(f'c{n}' for n in range(len(kept)))}",
        f"a.sinks = {' '.join(f'k{n}' for n in range(len(written)))} ",
    ]
    for n, ((kind, found), behind, selector) in enumerate(sent):
        lines += component(f"a.sources.r{n}", kind, found)
        fed = " ".join(f"c{random.randrange(len(kept))}" for _ in range(2))
        lines += [f"a.sources.r{n}.channels = {fed}"]
        lines += [f"a.sources.r{n}.selector.{name} = {value}" for name, value in selector.items()]
        lines += [f"a.sources.r{n}.interceptors = {' '.join(f'i{m}' for m in range(len(behind)))}"]
        for m, (of, settings_) in enumerate(behind):
            lines += component(f"a.sources.r{n}.interceptors.i{m}", of, settings_)
    for n, (kind, found) in enumerate(kept):
        lines += component(f"a.channels.c{n}", kind, found)
    for n, (kind, found) in enumerate(written):
        lines += component(f"a.sinks.k{n}", kind, found)
        lines += [f"a.sinks.k{n}.channel = c{random.randrange(len(kept))}"]
    text = "\n".join(lines)
    imported = flows.translate({"f": text}, {})
    check(imported)
    assert {one.place.line for one in imported.findings} == set(range(1, len(lines) + 1))


def component(prefix: str, kind: str, found: dict[str, str]) -> list[str]:
    return [f"{prefix}.type = {kind}", *(f"{prefix}.{name} = {found[name]}" for name in found)]


def check(imported: Imported) -> None:
    names = [flow.name for flow in imported.flows]
    assert len(set(names)) == len(names)
    for flow in imported.flows:
        assert check_flow(flow.text).flow == flow.name


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.text() | st.lists(st.sampled_from([*"a1.=:\\ \n#", "sources", "sinks"])).map("".join))
def test_any_text_is_an_agent_or_wrong_input(text: str) -> None:
    try:
        check(flows.translate({"f": text}, {}))
    except UserError as error:
        assert str(error)


ARGUMENTS = st.lists(
    st.sampled_from(['"/a/b"', '"rel"', "1", "0", "true", "raw", '"a.b(c)?"', '"%Y/%{x}/%q"', '""'])
).map(lambda words: f"({', '.join(words)})")


def call(names: list[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda name, given: name + given, st.sampled_from(names), ARGUMENTS)


ENDS = call([*OG_SINKS, *og.AGENTS, "own"])
OG_SINK = st.recursive(
    ENDS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda all_: f"[ {', '.join(all_)} ]")
        | st.lists(inner, min_size=2, max_size=2).map(lambda all_: f"< {' ? '.join(all_)} >")
        | st.builds(lambda d, s: f"{{ {d} => {s} }}", call([*DECORATORS, "batch", "own"]), inner)
        | inner.map(lambda one: f"collector(15000) {{ {one} }}")
    ),
    max_leaves=5,
)


@pytest.mark.slow
@SLOW
@given(st.lists(st.tuples(call([*OG_SOURCES, *HOPS, "own"]), OG_SINK), min_size=1, max_size=5))
def test_flows_of_any_nodes_are_valid(nodes: list[tuple[str, str]]) -> None:
    text = "\n".join(f"n{n} : {source} | {sink} ;" for n, (source, sink) in enumerate(nodes))
    imported = og.translate({"f": text})
    check(imported)
    assert {one.place.line for one in imported.findings} == set(range(1, len(nodes) + 1))
