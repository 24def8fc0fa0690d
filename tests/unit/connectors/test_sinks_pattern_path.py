"""Directories from the events' time, for whole batches."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from flumeng.events.pattern_path import MOST_BYTES, PatternPath
from flumeng.platform.errors import UserError


def batch(*moments: datetime | int | None) -> pa.Table:
    ts = pa.array(moments, pa.timestamp("us", "UTC"))
    return pa.Table.from_arrays([ts, pa.array(range(len(moments)))], ["ts", "row"])


def rows(path: str, *moments: datetime | int | None) -> dict[str, list[int]]:
    found = PatternPath(path).split(batch(*moments))
    return {directory: part["row"].to_pylist() for directory, part in found}


def test_root_is_the_path_before_the_first_pattern() -> None:
    assert PatternPath("/lake/web/dt=%Y-%m-%d/hour=%H").root == "/lake/web"
    assert PatternPath("s3a://lake/web/%Y/").root == "s3a://lake/web"
    assert PatternPath("/lake/web/").root == "/lake/web"


def test_query_stays_at_the_end_of_the_path_and_has_no_patterns() -> None:
    path = "s3://lake/%Y/x?endpoint_override=h%3A9000"
    assert PatternPath(path).root == "s3://lake?endpoint_override=h%3A9000"
    assert list(rows(path, 0)) == ["s3://lake/1970/x?endpoint_override=h%3A9000"]
    plain = PatternPath("s3://lake/web/?endpoint_override=h%3A9000")
    assert plain.root == "s3://lake/web?endpoint_override=h%3A9000"
    assert PatternPath("/lake/what?/%Y").root == "/lake/what?"


def test_path_without_patterns_takes_all_rows_without_a_time() -> None:
    plain = pa.Table.from_arrays([pa.array([1, 2])], ["row"])
    assert [(d, part.num_rows) for d, part in PatternPath("/lake/").split(plain)] == [("/lake", 2)]


def test_rows_go_into_the_directory_of_their_time_in_order() -> None:
    late, early = datetime(2026, 3, 1, 13, 5, tzinfo=UTC), datetime(2026, 2, 28, 23, tzinfo=UTC)
    assert rows("/l/dt=%Y-%m-%d/%H", late, early, late, early) == {
        "/l/dt=2026-02-28/23": [1, 3],
        "/l/dt=2026-03-01/13": [0, 2],
    }


def test_periods_are_in_utc_and_the_finest_pattern_counts() -> None:
    moment = datetime(2026, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    assert list(rows("/l/%Y", moment)) == ["/l/2026"]
    assert list(rows("/l/%m/%M", moment)) == ["/l/03/59"]


def test_times_before_1970_and_beyond_the_calendar_have_a_directory() -> None:
    first, last = -(2**62), 2**62
    assert list(rows("/l/%Y-%m-%d", -1)) == ["/l/1969-12-31"]
    assert list(rows("/l/%Y", first)) == ["/l/0001"]
    assert list(rows("/l/%Y", last)) == ["/l/9999"]
    assert list(rows("/l/%Y", None)) == ["/l/1970"]


def test_empty_batch_has_no_directory() -> None:
    assert rows("/l/%Y") == {}


def test_missing_time_column_is_reported() -> None:
    plain = pa.Table.from_arrays([pa.array([1])], ["row"])
    with pytest.raises(UserError, match="needs the column ts"):
        list(PatternPath("/l/%Y").split(plain))


def test_column_values_are_parts_of_the_path_as_in_hive() -> None:
    values = ["web", "a/b=c%", None, "", "..", "_flumeng", "ü b", "x" * 300, "web", "é" * 101]
    table = pa.table({"app": values, "n": range(10)})
    found = {d: part["n"].to_pylist() for d, part in PatternPath("/l/app={app}").split(table)}
    long, longer = (name for name in found if "~" in name)
    assert found == {
        "/l/app=web": [0, 8],
        "/l/app=a%2Fb%3Dc%25": [1],
        "/l/app=__HIVE_DEFAULT_PARTITION__": [2, 3],
        "/l/app=%2E.": [4],
        "/l/app=%5Fflumeng": [5],
        "/l/app=ü b": [6],
        long: [7],
        longer: [9],
    }
    assert all(len(name.rpartition("=")[2].encode()) <= MOST_BYTES for name in found)
    assert PatternPath("/l/app={app}").root == "/l"


def test_times_and_columns_make_a_directory_for_each_pair() -> None:
    table = pa.table(
        {
            "ts": pa.array([0, 0, 86_400_000_000, 0, None], pa.timestamp("us", "UTC")),
            "app": ["a", "b", "a", "a", "b"],
            "code": [1, 1, 1, 2, 1],
        }
    )
    split = PatternPath("/l/{app}/dt=%d/{code}").split(table)
    assert sorted((d, part.num_rows) for d, part in split) == [
        ("/l/a/dt=01/1", 1),
        ("/l/a/dt=01/2", 1),
        ("/l/a/dt=02/1", 1),
        ("/l/b/dt=01/1", 2),
    ]


def test_value_with_pattern_characters_is_escaped() -> None:
    table = pa.table({"ts": pa.array([0], pa.timestamp("us", "UTC")), "app": ["%d{app}"]})
    ((directory, _),) = PatternPath("/l/%d/{app}").split(table)
    assert directory == "/l/01/%25d%7Bapp%7D"
    with pytest.raises(UserError, match="needs the column app"):
        list(PatternPath("/l/{app}").split(table.drop_columns("app")))
