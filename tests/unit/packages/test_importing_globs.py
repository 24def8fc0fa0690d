"""Globs for regular expressions of Flume: never fewer files than the expression means."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from flumeng_flume import globs


@pytest.mark.parametrize(
    ("pattern", "glob", "exact", "names"),
    [
        ("app.*", "app*", True, ["app", "app.log"]),
        (r"app-[0-9]{4}-\d{2}.log", "app-" + "[0-9]" * 4 + "-" + "[0-9]" * 2 + ".log", True,
            ["app-2026-11.log"]),
        (r"app_(\d){4}-(\d){2}.*", "app_*", False, ["app_2026-11.log"]),
        (r"^((?!\.xls[x|d]$).)*$", "*", False, ["data"]),
        (r"app.log\.?", "app.log*", False, ["app.log", "app.log."]),
        (r".*\.log$|.*\.out$", "*", False, ["a.log", "b.out"]),
        (r".*\.(log|out)", "*.*", False, ["a.log", "b.out"]),
        (r".{3}\.log", "*", False, ["abc.log"]),
        (r"\w{2,5}-prod\.log", "*", False, ["abc-prod.log"]),
        (r"(?i)APP.*\.LOG", "*", False, ["app.log"]),
        (r"app\x2elog", "app*", False, ["app.log"]),
        (r"data_\p{Alpha}+\.csv", "data_*", False, ["data_x.csv"]),
        (r"a\|b", "a|b", True, ["a|b"]),
    ],
)  # fmt: skip
def test_glob_matches_at_least_the_files_of_its_expression(
    pattern: str, glob: str, exact: bool, names: list[str]
) -> None:
    assert globs.from_regex(pattern) == (glob, exact)
    assert all(fnmatchcase(name, glob) for name in names)
