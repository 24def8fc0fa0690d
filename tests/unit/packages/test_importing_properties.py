"""Properties files are read as Java reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng_flume.ng.properties import read


def pairs(text: str) -> list[tuple[int, str, str]]:
    return [(entry.line, entry.key, entry.value) for entry in read(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = b", [(1, "a", "b")]),
        ("a:b", [(1, "a", "b")]),
        ("a b c", [(1, "a", "b c")]),
        ("a\t=\tb ", [(1, "a", "b ")]),
        ("a = = b", [(1, "a", "= b")]),
        ("  # no\n ! neither\n\n a=1 # of the value", [(4, "a", "1 # of the value")]),
        ("a = b, \\\n    c, \\\r\n    d\ne=f", [(1, "a", "b, c, d"), (4, "e", "f")]),
        ("a = b\\\\\nc = d", [(1, "a", "b\\"), (2, "c", "d")]),
        ("a\\ b\\=c = d", [(1, "a b=c", "d")]),
        ("a = \\u00e9\\t\\x", [(1, "a", "é\tx")]),
        ("a = \\ud83d\\ude00", [(1, "a", "😀")]),
        ("a", [(1, "a", "")]),
        ("= b", [(1, "", "b")]),
        ("\ufeffa=1\rb=2", [(1, "a", "1"), (2, "b", "2")]),
        ("a = b \\", [(1, "a", "b ")]),
        ("a = b\\\n# of the value", [(1, "a", "b# of the value")]),
    ],
)
def test_lines_are_read_as_java_reads_them(text: str, expected: list[tuple[int, str, str]]) -> None:
    assert pairs(text) == expected


def test_incomplete_unicode_escape_is_damage() -> None:
    (entry,) = read("a = \\u00")
    assert "four hexadecimal digits" in entry.damage


@given(st.text())
def test_any_text_is_read_and_each_entry_knows_its_line(text: str) -> None:
    last = 0
    for entry in read(text):
        assert last < entry.line <= text.count("\n") + text.count("\r") + 1
        last = entry.line


@given(st.text(min_size=1), st.text())
def test_text_escaped_by_java_is_read_back(key: str, value: str) -> None:
    def escaped(text: str) -> str:
        return "".join(f"\\u{ord(unit):04x}" for unit in _units(text))

    ((_, found, read_value),) = pairs(f"{escaped(key)}={escaped(value)}")
    assert (found, read_value) == (key, value)


def _units(text: str) -> str:
    raw = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(int.from_bytes(raw[n : n + 2])) for n in range(0, len(raw), 2))
