"""Lines of container runtimes become the messages that the container has written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from flumeng.agent.collector.lines.reader import Joining
from flumeng.agent.collector.lines.rules import Rules
from flumeng.config import SpecError, check_flow, parse_flow
from flumeng.config.multiline import Multiline
from flumeng.connectors.api.ranged import Progress
from tests.unit.agent.test_lines_joining import batch

MINUTE = 60_000_000
AT = "2026-11-28T09:00:00.5Z"
MOMENT = datetime(2026, 11, 28, 9, 0, 0, 500_000, UTC)


def docker(log: str, stream: str = "stdout", at: str = AT) -> str:
    return json.dumps({"log": log, "stream": stream, "time": at})


def events(
    lines: Sequence[str],
    multiline: Multiline,
    attrs: Sequence[Mapping[str, str]] | None = None,
    times: Sequence[int] | None = None,
) -> list[tuple[str, Any, dict[str, str]]]:
    joining = Joining(Rules.of(multiline), Progress(0, 0))
    joining.add(batch([line.encode() for line in lines], attrs, times))
    return [
        (row["body"].decode(), row["ts"], dict(row["attrs"]))
        for found in joining.step(len(lines), flush=True)
        for row in found.to_pylist()
    ]


def bodies(lines: Sequence[str], multiline: Multiline, **more: Any) -> list[str]:
    return [body for body, _, _ in events(lines, multiline, **more)]


AUTO = Multiline(container="auto")
PIECES = [
    f'{AT} stdout P {{"order":7,"text":"first half ',
    "2026-11-28T09:00:00.6Z stderr F warning: something else",
    '2026-11-28T09:00:00.7Z stdout F and second half"}',
]


@pytest.mark.parametrize("container", ["cri", "auto"])
def test_pieces_are_joined_by_stream_and_unwrapped(container: Any) -> None:
    found = events(PIECES, Multiline(container=container))
    assert found == [
        ('{"order":7,"text":"first half and second half"}', MOMENT, {"stream": "stdout"}),
        ("warning: something else", MOMENT.replace(microsecond=600_000), {"stream": "stderr"}),
    ]


@pytest.mark.parametrize("container", ["docker", "auto"])
def test_last_piece_of_docker_has_no_newline(container: Any) -> None:
    lines = [docker("first "), docker("else\n", "stderr"), docker("half\r\n")]
    assert events(lines, Multiline(container=container)) == [
        ("first half", MOMENT, {"stream": "stdout"}),
        ("else", MOMENT, {"stream": "stderr"}),
    ]


def test_multiline_works_on_the_messages_of_each_stream() -> None:
    lines = [
        f"{AT} stderr F ERROR bo",
        f"{AT} stdout F GET /index 200",
        f"{AT} stderr P \tat app.Server.call",
        f"{AT} stdout F GET /items 200",
        f"{AT} stderr F (Server.java:31)",
        f"{AT} stderr F \tat app.Main.main(Main.java:1)",
    ]
    for multiline in (
        Multiline(container="auto", preset="java"),
        Multiline(container="cri", continues=r"^\s"),
        Multiline(container="cri", starts=r"^(ERROR|GET)"),
    ):
        found = events(lines, multiline)
        assert [(body, attrs["lines"]) for body, _, attrs in found] == [
            (
                "ERROR bo\n\tat app.Server.call(Server.java:31)\n\tat app.Main.main(Main.java:1)",
                "3",
            ),
            ("GET /index 200", "1"),
            ("GET /items 200", "1"),
        ]


def test_a_pattern_sees_the_whole_message() -> None:
    lines = [
        f"{AT} stdout F one",
        f"{AT} stdout P ",
        f"{AT} stdout F   two",
        f"{AT} stdout F three",
    ]
    assert bodies(lines, Multiline(container="cri", continues=r"^\s+two$")) == [
        "one\n  two",
        "three",
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("half of a li", "cri: no stream"),
        (f"{AT} stdout", "cri: no tag"),
        ("0:00.5Z stdout F torn in front", "cri: no time: 0:00.5Z"),
        ("", "cri: no stream"),
        ('{"log":"half of', "docker: malformed"),
        ('{"stream":"stdout"}', "docker: no log"),
    ],
)
def test_a_torn_line_stays_as_it_is_and_tears_no_message(line: str, reason: str) -> None:
    lines = [f"{AT} stdout P first ", line, f"{AT} stdout F half"]
    found = events(lines, AUTO)
    assert found[0] == ("first half", MOMENT, {"stream": "stdout"})
    assert (found[1][0], found[1][2]) == (line, {"parse_error": reason})
    assert len(found) == 2


def test_files_of_both_formats_may_match_one_glob() -> None:
    attrs = [{"path": name} for name in "abab"]
    lines = [f"{AT} stdout P a", docker("b "), f"{AT} stdout F A", docker("B\n")]
    assert bodies(lines, AUTO, attrs=attrs) == ["aA", "b B"]


def test_large_message_of_many_pieces_is_whole() -> None:
    piece = "x" * 16384
    lines = [*[f"{AT} stdout P {piece}"] * 10, f"{AT} stdout F end"]
    assert bodies(lines, AUTO) == [piece * 10 + "end"]
    found = events(lines, Multiline(container="cri", max_bytes=50_000))
    assert [len(body) for body, _, _ in found] == [3 * 16384] * 3 + [16384 + 3]
    assert {attrs["multiline_closed"] for _, _, attrs in found[:3]} == {"max_bytes"}


def test_rest_of_a_message_is_waited_for_up_to_a_minute() -> None:
    """So that neither a restart nor a full journal tears it."""
    lines = [f"{AT} stdout P first ", f"{AT} stdout F half"]
    assert bodies(lines, AUTO, times=[0, MINUTE]) == ["first half"]
    late = events(lines, AUTO, times=[0, MINUTE + 1])
    assert [(body, attrs.get("multiline_closed")) for body, _, attrs in late] == [
        ("first ", "timeout"),
        ("half", None),
    ]


def test_whole_messages_are_emitted_at_once() -> None:
    joining = Joining(Rules.of(AUTO), Progress(0, 0))
    joining.add(batch([line.encode() for line in [PIECES[1], PIECES[1]]]))
    assert [found.num_rows for found in joining.step(2)] == [2]
    assert (joining.progress, joining.unfinished) == (Progress(2, 2), False)
    joining.add(batch([PIECES[0].encode()], first=2))
    assert list(joining.step(3)) == []
    assert (joining.progress, joining.unfinished) == (Progress(2, 2), True)


def test_container_option_changes_the_rules_digest() -> None:
    assert Multiline(preset="java").digest != Multiline(preset="java", container="cri").digest
    with pytest.raises(SpecError, match="starts, continues, preset or container"):
        parse_flow(flow("{key: [path]}"))


def test_unwrapped_lines_cannot_be_parsed_as_containers_again() -> None:
    parse = "filters: [parse: {format: cri}]\n"
    assert check_flow(flow("{preset: java}", parse)).multiline
    with pytest.raises(SpecError, match="unwraps the lines of containers"):
        check_flow(flow("{container: auto}", parse))


def flow(multiline: str, filters: str = "") -> str:
    return (
        f"flow: a\nsources: [tail: {{paths: [/a]}}]\nmultiline: {multiline}\n{filters}"
        "sinks: [noop]\n"
    )
