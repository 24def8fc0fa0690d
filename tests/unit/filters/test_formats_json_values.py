"""JSON values of many objects at once: the same texts as of each object by itself."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.events.byte_column import ByteColumn
from flumeng.filters.formats import json_values

decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
NAMES = ["a", "b", "", "é", "x y", "\x7f", "n" * 31, "n" * 32, "é" * 16]
names = st.lists(st.sampled_from(NAMES), max_size=4, unique=True)
spaces = st.sampled_from(["", "", " ", "\n", "\t\r\n"])
scalars = st.sampled_from(
    ["1", "-0.5e3", "true", "null", '""', '"\\n\\"\\\\"', '"\\u0001"', '"},{"', '"é\x7f"', "{}"]
)
nested = st.recursive(
    scalars,
    lambda inner: (
        st.builds(lambda them, gap: "[" + f"{gap},{gap}".join(them) + gap + "]",
                  st.lists(inner, max_size=3), spaces)
        | st.builds(lambda it, gap: f'{{{gap}"a"{gap}:{gap}{it}{gap}}}', inner, spaces)
    ),
    max_leaves=5,
)  # fmt: skip
keys = st.builds(
    lambda name, plain: json.dumps(name, ensure_ascii=plain),
    st.sampled_from([*NAMES, "c", "\x01", "\\"]),
    st.booleans(),
)
members = st.builds(lambda key, gap, it: f"{key}{gap}:{gap}{it}{gap}", keys, spaces, nested)
objects = st.lists(members, max_size=5).map(lambda them: "{" + ",".join(them) + "}")


def alone(text: str, name: str) -> bytes:
    return bytes(decode(text).get(name, b"null"))


@given(st.lists(objects, max_size=4), names)
def test_objects_together_have_the_values_of_each_alone(texts: list[str], names: list[str]) -> None:
    found = json_values.objects(pa.array(texts, pa.string()), names)
    assert [column.array().to_pylist() for column in found] == [
        [alone(text, name) for text in texts] for name in names
    ]


@given(st.lists(st.lists(nested, max_size=3), max_size=3))
def test_arrays_together_have_the_entries_of_each_alone(arrays: list[list[str]]) -> None:
    raws = ByteColumn(
        pa.array(["[" + ",".join(it) + "]" for it in arrays], pa.string()).cast("binary")
    )
    found, failed = json_values.column(raws, pa.list_(pa.string()))
    assert found.to_pylist() == [[as_text(it) for it in them] for them in arrays]
    assert not failed.any()


def as_text(raw: str) -> Any:
    value = json.loads(raw)
    return value if value is None or isinstance(value, str) else raw


@pytest.mark.parametrize("fields", [0, 1, 15, 16, 92, 127, 128, 300])
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 127, 128, 255, 256])
def test_values_are_found_behind_headers_of_each_size(fields: int, rows: int) -> None:
    wanted = [f"f{index}" for index in range(fields)]
    texts = [
        "{" + ",".join(f'"{name}":"é{row}"' for name in wanted[row % 2 :]) + "}"
        for row in range(rows)
    ]
    found = json_values.objects(pa.array(texts, pa.string()), wanted)
    assert [column.array().to_pylist() for column in found] == [
        [alone(text, name) for text in texts] for name in wanted
    ]


@pytest.mark.parametrize("rows", [65_535, 65_536, 65_536 + 128])
def test_values_of_many_objects_are_found(rows: int) -> None:
    texts = pa.array([f'{{"b":{row},"a":"é"}}' for row in range(rows)])
    a, b = json_values.objects(texts, ["a", "b"])
    assert a.array().unique().to_pylist() == ['"é"'.encode()]
    assert b.array().cast(pa.string()).cast(pa.int64()).to_pylist() == list(range(rows))


@pytest.mark.parametrize("character", ["\x80", "¿", "ÿ", "߿", "ࠀ", "￿", "😀", "\U0010ffff"])
def test_no_character_is_taken_for_a_header(character: str) -> None:
    texts = [f'{{"a":"{character}","b":["x{character}"],"c":{{"{character}":1}}}}', "{}"]
    found = json_values.objects(pa.array(texts), ["a", "b", "c", character])
    assert [column.array().to_pylist() for column in found] == [
        [alone(text, name) for text in texts] for name in ["a", "b", "c", character]
    ]
