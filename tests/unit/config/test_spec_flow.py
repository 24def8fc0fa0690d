"""The parsed form of a flow file."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flumeng.config import (
    Batch,
    CollectPlace,
    Component,
    FlowSpec,
    IngestPlace,
    Place,
    Problem,
    SpecError,
    TaskRange,
    check_flow,
    document,
    parse_flow,
    registry,
)
from flumeng.config.guarantees import promise
from flumeng.connectors.console.options import Console
from flumeng.connectors.files.options import Files
from flumeng.connectors.network.options import Syslog
from flumeng.connectors.tail.options import Tail
from flumeng.filters.options.parse import Parse
from flumeng.filters.options.select import Select
from flumeng.filters.options.where import Where
from flumeng.platform.errors import UserError

ROOT = Path(__file__).parents[3]
FLOWS = sorted(
    set((ROOT / "conf/flows").glob("*.yaml")) - set((ROOT / "conf/flows").glob("*.test.yaml"))
)


def test_flow_of_the_design_is_parsed_as_written() -> None:
    spec = parse_flow("""
flow: web-logs
sources:
  - syslog: {listen: "0.0.0.0:5514", protocol: tcp}
  - tail: {paths: ["/var/log/nginx/*.log"]}
place: {ingest: {labels: {role: web}}, collect: {labels: {role: spark}, tasks: 4}}
durability: disk
delivery: exactly-once
filters:
  - parse: {format: syslog}
  - where: "severity <= 4"
sinks:
  - files: {path: "s3a://lake/web/dt=%Y-%m-%d/hour=%H", format: parquet}
""")
    assert spec == FlowSpec(
        flow="web-logs",
        sources=(
            Component("source", "syslog", Syslog(listen="0.0.0.0:5514", protocol="tcp")),
            Component("source", "tail", Tail(paths=("/var/log/nginx/*.log",))),
        ),
        place=Place(
            ingest=IngestPlace(labels={"role": "web"}),
            collect=CollectPlace(labels={"role": "spark"}, tasks=4),
        ),
        durability="disk",
        delivery="exactly-once",
        filters=(
            Component("filter", "parse", Parse(format="syslog")),
            Component("filter", "where", Where(expression="severity <= 4")),
        ),
        sinks=(Component("sink", "files", Files(path="s3a://lake/web/dt=%Y-%m-%d/hour=%H")),),
    )


def test_omitted_options_have_their_defaults() -> None:
    spec = parse_flow("flow: a\nsources: [syslog: {listen: 'x:1'}]\nsinks: [console]")
    assert spec.place == Place(IngestPlace({}), CollectPlace({}, None))
    assert spec.batch == Batch(seconds=None, events=2_000_000)
    assert (spec.durability, spec.delivery, spec.filters) == ("disk", "at-least-once", ())
    assert spec.sources[0].options == Syslog("x:1", "tcp", "auto", 2**20)
    assert spec.sinks == (Component("sink", "console", Console()),)


@pytest.mark.parametrize(
    ("rest", "seconds"),
    [
        ("sinks: [noop]", 1.0),
        ("sinks: [noop, files: {path: /lake}]", 60.0),
        ("sinks: [files: {path: /lake}]\nbatch: {seconds: 0.2, events: 10}", 0.2),
        ("sinks: [files: {path: /lake}]\ndurability: memory", 1.0),
        ("sinks: [files: {path: /lake}]\njournal: {max_bytes: 64 MiB}", 1.0),
        ("sinks: [files: {path: /lake}]\njournal: {max_bytes: 1 GiB}", 60.0),
    ],
)
def test_batch_seconds_depend_on_sinks_and_journal(rest: str, seconds: float) -> None:
    spec = parse_flow(f"flow: a\nsources: [syslog: {{listen: 'x:1'}}]\n{rest}")
    assert spec.batch_seconds == seconds


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("", "About 1,440 files a day from each task: one for each batch, every 60 s"),
        ("batch: {seconds: 1}", "About 86,400 files a day from each task"),
        ("place: {collect: {tasks: 4}}", "About 5,760 files a day from its 4 tasks"),
        ("batch: {seconds: 0}", "Any number of files a day from each task"),
    ],
)
def test_guarantees_mention_the_number_of_files(rest: str, said: str) -> None:
    text = "flow: a\nsources: [syslog: {listen: 'x:1'}]\nsinks: [files: {path: /lake}]\n"
    assert promise(parse_flow(text + rest))[-1].startswith(said)
    assert "files" not in promise(parse_flow(text.replace("files: {path: /lake}", "noop")))[-1]


def test_local_path_belongs_to_one_host_unless_it_is_shared() -> None:
    text = (
        "flow: a\nsources: [syslog: {listen: 'x:1'}]\ndelivery: exactly-once\n"
        "sinks: [files: {path: "
    )
    assert "/lake is on the disk of each host" in " ".join(promise(parse_flow(text + "/lake}]")))
    for path in ("/lake, shared: true", "s3://b/lake"):
        assert "on the disk" not in " ".join(promise(parse_flow(f"{text}{path}}}]")))
    with pytest.raises(SpecError, match="expected true or false; found"):
        parse_flow(f"{text}/lake, shared: maybe}}]")


def test_numbers_arrive_in_the_unit_of_their_option() -> None:
    spec = parse_flow("""
flow: a
sources: [tail: {paths: [/a], max_line_bytes: 64 KiB, poll_seconds: 250 ms}]
sinks: [noop]
batch: {seconds: 2 min, events: 10_000}
""")
    tail: Any = spec.sources[0].options
    assert (tail.max_line_bytes, tail.poll_seconds) == (65536, 0.25)
    assert spec.batch == Batch(seconds=120.0, events=10_000)
    assert type(tail.max_line_bytes) is int
    assert type(spec.batch.seconds) is float


def test_short_and_long_form_of_a_filter_are_equal() -> None:
    short = "where: a > 1\n  - select: [a, b]"
    long = "where: {expression: a > 1}\n  - select: {expressions: [a, b]}"
    read = [
        parse_flow(
            f"flow: a\nsources: [tail: {{paths: [/a]}}]\nsinks: [noop]\nfilters:\n  - {text}"
        )
        for text in (short, long)
    ]
    assert read[0] == read[1]
    assert [f.options for f in read[0].filters] == [Where("a > 1"), Select(("a", "b"))]


def test_all_spellings_of_a_sink_without_options_are_equal() -> None:
    for sinks in ("[console]", "[console: ]", "[console: {}]", "\n  - console"):
        spec = parse_flow(f"flow: a\nsources: [tail: {{paths: [/a]}}]\nsinks: {sinks}")
        assert spec.sinks == (Component("sink", "console", Console()),)


def test_problems_carry_line_path_and_message() -> None:
    with pytest.raises(SpecError) as caught:
        parse_flow("flow: a\nsources:\n  - tail: {}\nsinks: [nop]\n")
    assert isinstance(caught.value, UserError)
    assert caught.value.problems == (
        Problem(3, "sources[0].tail", 'missing "paths": expected a list, like '
                '["/var/log/app/*.log"]'),
        Problem(4, "sinks[0]", 'unknown sink "nop"; did you mean "noop"?'),
    )  # fmt: skip
    assert str(caught.value).splitlines()[1] == (
        'line 4: sinks[0]: unknown sink "nop"; did you mean "noop"?'
    )


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (  # an unknown filter: only errors that do not depend on columns are reported
            ["pars: {format: json}", 'where: "a >"', 'where: "b = 1"'],
            ["filters[0]", "filters[1].where"],
        ),
        (  # a wrong condition changes no column, so later filters are checked as usual
            ['where: "a >"', 'where: "b = 1"', 'select: ["body", "c AS d", "e +"]'],
            [
                "filters[0].where",
                "filters[1].where",
                "filters[2].select[1]",
                "filters[2].select[2]",
            ],
        ),
        (  # behind a wrong select the columns are unknown
            ['select: ["nope"]', 'where: "b = 1"', 'where: "sha3(body) = 1"'],
            ["filters[0].select[0]", "filters[2].where"],
        ),
        (
            ['{set: {x: "a"}, when: "a >"}', 'where: "b = 1"'],
            ["filters[0].when", "filters[1].where"],
        ),
    ],
)
def test_wrong_filter_does_not_hide_problems_elsewhere(
    filters: list[str], expected: list[str]
) -> None:
    text = (
        "flow: a\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        + "".join(f"- {row}\n" for row in filters)
        + "sinks: [files: {path: '/x/{level}', format: json}]\n"
        + "branches: [{name: b, when: 'c <', sinks: [noop: {}]}]\nbatch: {seconds: soon}\n"
    )
    with pytest.raises(SpecError) as refused:
        check_flow(text)
    found = [problem.path for problem in refused.value.problems]
    kept = [path for path in found if path.startswith("filters")]
    assert kept == expected
    assert {"branches[0].when", "batch.seconds"} <= set(found)


def test_a_huge_file_is_refused_before_it_is_read() -> None:
    with pytest.raises(SpecError, match="larger than 128 KiB"):
        parse_flow("flow: a\n" + "#" * document.MAX_BYTES)


def test_characters_that_yaml_forbids_are_named_with_their_line() -> None:
    with pytest.raises(SpecError) as caught:
        parse_flow("flow: a\nsinks: [\x00]")
    assert caught.value.problems == (
        Problem(2, "", "not YAML: special characters are not allowed"),
    )


@pytest.mark.parametrize("file", FLOWS, ids=lambda file: file.name)
def test_example_flows_are_valid(file: Path) -> None:
    assert parse_flow(file.read_text()).flow == file.stem


def test_example_flows_exist() -> None:
    assert len(FLOWS) >= 3


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('syslog: {listen: "[::]:514"}', "in flight when a connection or the worker fails"),
        ('syslog: {listen: "[::]:514", protocol: udp}', "the network or a full kernel buffer"),
        ('tcp: {listen: "[::]:514"}', "senders get no acknowledgement"),
        ('udp: {listen: "[::]:514"}', "the network or a full kernel buffer"),
        ('http: {listen: "[::]:80"}', "retry until they are answered 200"),
        (
            'http: {listen: "[::]:80", ack: received}',
            "answered 200 before their events are journaled",
        ),
        ('http: {listen: "[::]:80", ack: delivered}', "200, once the sinks have the events,"),
        ("exec: {command: [/bin/date]}", "output that is not journaled"),
        ("generate", "each number is generated once"),
    ],
)
def test_possible_losses_before_acceptance_are_listed_for_each_source(
    source: str, words: str
) -> None:
    spec = parse_flow(f"flow: f\nsources:\n  - {source}\nsinks: [noop]\n")
    name = source.partition(":")[0]
    first, *others = promise(spec)
    assert first.startswith(f"{name}: ")
    assert words in first
    assert len(others) == 2


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("sinks: [noop]\ndelivery: at-most-once", "at-most-once acks before the sinks write"),
        ("sinks: [noop]\njournal: {kafka: {brokers: [k:1], topic: t}}", "journal in Kafka"),
        ("sinks: [noop]\nbatch: {seconds: 5}", "gathers events for 5 s"),
        ("sinks: [files: {path: /x}]", "gathers events for 60 s"),
    ],
)
def test_ack_delivered_is_refused_where_delivery_is_never_acked(rest: str, message: str) -> None:
    source = 'http: {listen: "[::]:80", ack: delivered, ack_timeout_seconds: 5}'
    with pytest.raises(SpecError) as refused:
        check_flow(f"flow: f\nsources:\n  - {source}\n{rest}\n")
    told = [(one.path, message in one.message) for one in refused.value.problems]
    assert told == [("sources[0].http.ack", True)]
    check_flow(f"flow: f\nsources:\n  - {source.replace('delivered', 'received')}\n{rest}\n")


def test_ack_delivered_does_not_wait_for_isolated_sinks() -> None:
    source = 'http: {listen: "[::]:80", ack: delivered, ack_timeout_seconds: 5}'
    sinks = "  - noop\n  - files: {path: /x}\n"
    text = f"flow: f\nsources:\n  - {source}\nsinks:\n{sinks}"
    with pytest.raises(SpecError):
        check_flow(text)
    check_flow(f"{text}    isolated: true\n")


def test_flow_without_a_journal_has_no_guarantees_of_one() -> None:
    source = "kafka: {brokers: [k:9092], topics: [a]}"
    said = promise(parse_flow(f"flow: f\nsources:\n  - {source}\nsinks: [noop]\n"))
    assert said == (
        "kafka: each message that Kafka still has when it is read is taken once.",
        "A message that is read reaches the sinks once or, after a failure, more than once "
        "(delivery at-least-once).",
    )


def test_filters_have_the_columns_of_kafka_messages() -> None:
    flow = "flow: f\nsources: [{}]\nsinks: [noop]\nfilters:\n  - select: {}\n"
    chosen = "[\"cast(headers['a'] as string) as a\", key, topic, partition]"
    kafka = "kafka: {brokers: [k:9092], topics: [a]}"
    assert check_flow(flow.format(kafka, chosen)).flow == "f"
    with pytest.raises(UserError, match="headers"):
        check_flow(flow.format("generate", chosen))


def test_every_flow_in_the_docs_is_valid() -> None:
    pages = {*(ROOT / "docs").rglob("*.md"), *(ROOT / "flumeng").rglob("README.md")}
    plug_ins = {page for page in pages if page.name in ("plugins.md", "write-a-plug-in.md")}
    texts = [yaml for page in sorted(pages - plug_ins) for yaml in flows_in(page)]
    for text in texts:
        parse_flow(text)
    assert len(texts) >= 50


def flows_in(page: Path) -> Iterator[str]:
    for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        if "flow: " in text and "sources:" in text:
            yield textwrap.dedent(text)


def test_every_component_has_a_heading_of_its_own() -> None:
    filters = (ROOT / "flumeng" / "filters" / "README.md").read_text()
    for entry in registry.entries("filter"):
        assert f"\n## `{entry.name}`\n" in filters
    for kind in ("source", "sink"):
        for entry in registry.entries(kind):
            folder = entry.options.split(".")[2]
            readme = (ROOT / "flumeng" / "connectors" / folder / "README.md").read_text()
            headings = re.findall(rf"^## {kind.capitalize()}s? (.*)$", readme, re.MULTILINE)
            assert any(f"`{entry.name}`" in heading for heading in headings), entry.name


def test_reading_a_flow_loads_nothing_that_only_a_worker_needs() -> None:
    code = (
        "import sys; from flumeng.config import parse_flow\n"
        'parse_flow(\'{flow: a, sources: [syslog: {listen: "x:1"}], filters: [parse: {format:'
        " syslog}], sinks: [files: {path: /a}]}')\n"
        "print([m for m in ('pyarrow', 'numpy', 'pandas', 'pyspark') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC", "America/Argentina/Ushuaia"])
def test_time_zone_must_have_its_iana_name(zone: str) -> None:
    text = "flow: a\nsources: [tail: {paths: [/a]}]\nsinks: [console]\nfilters:\n  - parse: "
    spec = parse_flow(text + f"{{format: syslog, timezone: {zone}}}")
    assert spec.filters[0].options == Parse(format="syslog", timezone=zone)
    with pytest.raises(UserError, match="only format syslog takes this option"):
        parse_flow(text + f"{{format: json, schema: 'a INT', timezone: {zone}}}")


@pytest.mark.parametrize("zone", ["Berlin", "+01:00", "Europe", "../etc/passwd"])
def test_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(UserError, match=r"timezone: expected a time zone, like \"Europe/Berlin\""):
        parse_flow(
            "flow: a\nsources: [tail: {paths: [/a]}]\nsinks: [console]\n"
            f"filters:\n  - parse: {{format: syslog, timezone: {zone}}}"
        )


def test_dead_letters_are_a_sink_like_others() -> None:
    spec = parse_flow("""
flow: web
sources: [{syslog: {listen: "0.0.0.0:5514"}}]
sinks: [noop]
dead_letters: {files: {path: "s3a://lake/dead"}}
""")
    assert spec.dead_letters == Component("sink", "files", Files("s3a://lake/dead"))
    with pytest.raises(
        SpecError, match=r"dead_letters.files.path: s3a://lake/web is already used by sinks"
    ):
        parse_flow("""
flow: web
sources: [{syslog: {listen: "0.0.0.0:5514"}}]
sinks: [{files: {path: "s3a://lake/web"}}]
dead_letters: {files: {path: "s3a://lake/web"}}
""")


IN_KAFKA = """\
flow: web
sources: [{source}]
journal: {{kafka: {{brokers: ["kafka-1:9092"], topic: web-journal}}}}
sinks: [noop]
"""


def test_kafka_journal_is_read_as_a_topic() -> None:
    spec = parse_flow(IN_KAFKA.format(source='syslog: {listen: "0.0.0.0:5514"}'))
    journal: Any
    (journal,) = spec.partitioned
    assert journal.options.topics == ("web-journal",)
    assert journal.options.brokers == ("kafka-1:9092",)
    assert [source.name for source in spec.pinned] == ["syslog"]


@pytest.mark.parametrize(
    ("source", "place", "message"),
    [
        ('tail: {paths: ["/var/log/a"]}', "sources[0].tail", "keeps its position in a journal on"),
        ("generate", "sources[0].generate", "keeps its position in a journal on"),
        ('exec: {command: ["/bin/ls"], mode: once}', "sources[0].exec", "keeps its position"),
        ('kafka: {brokers: ["a:1"], topics: [b]}', "journal.kafka", "reads Kafka too"),
    ],
)
def test_source_that_cannot_have_its_journal_in_kafka_is_refused(
    source: str, place: str, message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        parse_flow(IN_KAFKA.format(source=source))
    assert [(one.path, message in one.message) for one in refused.value.problems] == [(place, True)]


def test_journal_in_kafka_takes_no_disk_settings() -> None:
    text = IN_KAFKA.format(source='syslog: {listen: "0.0.0.0:5514"}')
    with pytest.raises(SpecError) as refused:
        parse_flow(text.replace("{kafka:", "{max_bytes: 1 GiB, kafka:") + "durability: memory\n")
    assert sorted(one.path for one in refused.value.problems) == ["durability", "journal.max_bytes"]


def test_flow_with_two_kafka_clusters_is_refused() -> None:
    text = """\
flow: web
sources:
  - kafka: {brokers: ["a:9092"], topics: [orders]}
  - kafka: {brokers: ["b:9092"], topics: [payments]}
sinks: [noop]
"""
    with pytest.raises(SpecError) as refused:
        parse_flow(text)
    assert [one.path for one in refused.value.problems] == ["sources[1].kafka"]


SCALED = """
flow: a
sources: [kafka: {brokers: ["k:9092"], topics: [orders]}]
place: {collect: {tasks: TASKS}}
sinks: [noop]
"""


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("4", 4),
        ("{max: 8}", TaskRange(max=8, min=1, lag_seconds=60.0)),
        ("{min: 2, max: 8, lag_seconds: 5 min}", TaskRange(max=8, min=2, lag_seconds=300.0)),
        ("{min: 3, max: 3}", TaskRange(max=3, min=3)),
    ],
)
def test_tasks_option_is_a_number_or_a_range(written: str, meant: int | TaskRange) -> None:
    assert parse_flow(SCALED.replace("TASKS", written)).place.collect.tasks == meant


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("many", 'place.collect.tasks: expected a whole number; found "many"'),
        ("[1, 2]", "place.collect.tasks: expected a whole number; found a list"),
        ("0", "place.collect.tasks: expected at least 1"),
        ("{min: 2}", 'place.collect.tasks: missing "max": expected a whole number'),
        ("{min: 3, max: 2}", "place.collect.tasks.max: expected at least 3, which is `min`"),
        ("{max: 8, lag: 60}", "place.collect.tasks.lag: unknown option; "),
        ("{max: 0}", "place.collect.tasks.max: expected at least 1"),
    ],
)
def test_invalid_number_of_tasks_is_refused(written: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_flow(SCALED.replace("TASKS", written))
    (found,) = refused.value.problems
    assert f"{found.path}: {found.message}".startswith(problem)


def test_range_of_tasks_needs_a_discovery_task() -> None:
    """Only that sees how late the events are."""
    range_ = SCALED.replace("TASKS", "{max: 8}")
    source = 'kafka: {brokers: ["k:9092"], topics: [orders]}'
    syslog = 'syslog: {listen: "0.0.0.0:5514"}'
    with pytest.raises(SpecError, match="a range needs a discovery task"):
        parse_flow(range_.replace(source, syslog))
    assert parse_flow(range_.replace(source, f"{source}, {syslog}"))
    journal = 'journal: {kafka: {brokers: ["k:9092"], topic: t}}\n'
    assert parse_flow(range_.replace(source, syslog) + journal)


@pytest.mark.parametrize(
    ("more", "step", "said"),
    [
        ("multiline: {preset: java}", "sql: SELECT * FROM events LIMIT 5", "LIMIT leaves lines"),
        ("multiline: {preset: java}", "sql: SELECT * FROM events ORDER BY seq LIMIT 5", ""),
        ("", "sql: SELECT * FROM events LIMIT 5", ""),
        ("", "parse: {format: json, fields: {a: x NUMBER}}", "a: expected a type such as STRING"),
        ("", "parse: {format: json, fields: {a: x BIGINT, b: y}}", ""),
    ],
)
def test_filter_errors_at_run_time_are_reported_before(more: str, step: str, said: str) -> None:
    text = f"flow: f\nsources: [tail: {{paths: [/a]}}]\nfilters:\n  - {step}\nsinks: [noop]\n{more}"
    try:
        check_flow(text)
        assert not said
    except SpecError as error:
        assert said
        assert said in str(error)
