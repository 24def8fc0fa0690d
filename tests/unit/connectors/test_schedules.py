"""Due times of a poller: by rule, the same for every observer, in any time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.connectors.polls.options import Schedule, check_cron

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def due(schedule: Schedule, after: datetime, count: int, flow: str = "f") -> list[str]:
    return [f"{one:%d %H:%M:%S}" for one in islice(schedule.due_after(after, flow), count)]


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # The hour from 2 to 3 is skipped on 29 March: its due times move to 3, 01:00 in UTC.
        ("30 2 * * *", datetime(2026, 3, 28, tzinfo=UTC), ["28 01:30", "29 01:00", "30 00:30"]),
        # It comes twice on 25 October: its due times come once.
        ("30 2 * * *", datetime(2026, 10, 24, tzinfo=UTC), ["24 00:30", "25 00:30", "26 01:30"]),
        # Each hour is each hour, also where clocks say the same one twice.
        ("0 * * * *", datetime(2026, 10, 25, 0, 30, tzinfo=UTC), ["25 01:00", "25 02:00"]),
    ],
)
def test_clock_changes_neither_skip_nor_double_a_due_time(
    cron: str, after: datetime, expected: list[str]
) -> None:
    schedule = Schedule(cron=cron, time_zone="Europe/Berlin")
    found = due(schedule, after, len(expected))
    assert [one[:8] for one in found] == expected


def test_seconds_count_from_whole_minutes() -> None:
    assert due(Schedule(every_seconds=20), NOON, 3) == ["01 12:00:20", "01 12:00:40", "01 12:01:00"]
    cron = Schedule(cron="*/20 * * * * *")
    assert due(cron, NOON, 3) == ["01 12:00:20", "01 12:00:40", "01 12:01:00"]


def test_jitter_moves_all_due_times_of_a_flow_alike_and_flows_apart() -> None:
    schedule = Schedule(every_seconds=60, jitter_seconds=60)
    one, other = (list(islice(schedule.due_after(NOON, flow), 3)) for flow in ("a", "b"))
    assert {b - a for a, b in pairwise(one)} == {timedelta(seconds=60)}
    assert one[0] != other[0]


@given(
    st.one_of(
        st.builds(
            Schedule,
            every_seconds=st.sampled_from([1.0, 1.5, 7.0, 60.0, 3600.0]),
            jitter_seconds=st.floats(0, 90),
        ),
        st.builds(
            Schedule,
            cron=st.sampled_from(["*/5 * * * *", "30 2 * * *", "*/7 * * * * *", "0 3 * * 1"]),
            time_zone=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns"]),
            jitter_seconds=st.floats(0, 90),
        ),
    ),
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
)
def test_due_after_and_last_due_agree(schedule: Schedule, at: datetime) -> None:
    following = list(islice(schedule.due_after(at, "flow"), 3))
    assert following == sorted(set(following)) and following[0] > at
    last = schedule.last_due(following[1], "flow")
    assert last == following[1]
    before = schedule.last_due(following[1] - timedelta(microseconds=1), "flow")
    assert before == following[0]


@pytest.mark.parametrize("text", ["", "* * *", "61 * * * *", "0 0 31 2 *", "nonsense"])
def test_cron_expression_that_is_never_due_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"expected a cron expression of five fields|due at some time"
    ):
        check_cron(text)


def test_contradictory_schedule_is_reported() -> None:
    both = Schedule(cron="* * * * *", every_seconds=5)
    assert [name for name, _ in both.problems()] == ["cron"]
    zone = Schedule(every_seconds=5, time_zone="Europe/Berlin")
    assert [name for name, _ in zone.problems()] == ["time_zone"]
