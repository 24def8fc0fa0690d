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
NAMES = ["a", "b", "", "é", "x y", "\x7f0", "\x7f1"]
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


@pytest.mark.parametrize("member", ["null", "1", '"x"', "{}", '"\\u0001"'])
def test_a_member_named_like_a_mark_moves_no_value(member: str) -> None:
    texts = [f'{{"a":1,"\x7f0":{member},"b":2}}', '{"a":3}', '{"b":4}']
    a, b = json_values.objects(pa.array(texts), ["a", "b"])
    assert a.array().to_pylist() == [b"1", b"3", b"null"]
    assert b.array().to_pylist() == [b"2", b"null", b"4"]


@pytest.mark.parametrize("place", ['"%s"', '{"%s":1}', "1%s", "%s1", '["%s"]'])
def test_marks_are_no_part_of_any_json(place: str) -> None:
    text = '{"a":' + place % "\x01" + ',"\x7f0":null}'
    with pytest.raises(msgspec.DecodeError):
        json_values.objects(pa.array([text]), ["a"])
