"""Rights of a user's function over a batch, and the errors of one that exceeds them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.config import SpecError, check_flow, policy
from flumeng.config.component import Component
from flumeng.filters.conditional import ROW, ConditionalStage
from flumeng.filters.marks import WHEN
from flumeng.filters.options.python import Python
from flumeng.filters.python import PythonFilter, PythonStage
from flumeng.platform.errors import UserError
from flumeng.platform.user_functions import FunctionError

MODULE = "flumeng_test_filters"
CODE = """
import json, pyarrow as pa
import pyarrow.compute as pc

def twice(batch, unit="x"):
    texts = pa.array([f"{2 * n}{unit}" for n in batch["n"].to_pylist()], pa.large_string())
    return batch.append_column("text", texts)

def even(batch):
    table = pa.table(batch)
    return table.filter(pc.equal(pc.bit_wise_and(table["n"], 1), 0))

def raises(batch):
    raise ValueError("no such model")

def nothing(batch):
    pass

def deep(batch):
    return json.loads("no JSON")

def loses(batch):
    return batch.select(["n"])

def wrong(batch):
    return batch.append_column("text", pa.array([{"a": 1}] * len(batch)))

def more(batch):
    return twice(batch).append_column("extra", batch["n"])
"""
BEFORE = pa.schema([pa.field("n", pa.int64()), pa.field("host", pa.string())])
BEHIND = BEFORE.append(pa.field("text", pa.string()))
BATCH = pa.RecordBatch.from_pydict({"n": [1, 2, 3], "host": ["a", "b", None]}, schema=BEFORE)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)


def stage(name: str, schema: pa.Schema = BEHIND, **given: str) -> PythonStage:
    return PythonStage(f"{MODULE}:{name}", given, schema)


def test_columns_are_added_and_rows_dropped() -> None:
    (found,) = stage("twice", unit="s")(iter([BATCH]))
    assert found.schema == BEHIND
    assert found["text"].to_pylist() == ["2s", "4s", "6s"]
    (found,) = stage("even", BEFORE)(iter([BATCH]))
    assert found.to_pylist() == [{"n": 2, "host": "b"}]


def test_function_runs_under_a_condition() -> None:
    marked = BATCH.append_column(WHEN, pa.array([True, False, True]))
    numbered = BEHIND.insert(2, pa.field(ROW, pa.int64()))
    (found,) = ConditionalStage(stage("twice", numbered), BEFORE, BEHIND)(iter([marked]))
    assert found["text"].to_pylist() == ["2x", None, "6x"]
    with pytest.raises(FunctionError, match="returned the column host 0 times"):
        list(ConditionalStage(stage("loses", numbered), BEFORE, BEHIND)(iter([marked])))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", rf"^python {MODULE}:raises raised ValueError: no such model \(line 14 of "),
        ("deep", rf"raised json.*JSONDecodeError: .* \(line 20 of .*{MODULE}\.py\)$"),
        ("nothing", "returned a NoneType: expected a pyarrow.RecordBatch"),
        ("loses", "returned the column host 0 times"),
        ("wrong", "returned other types than those of its input and adds"),
        ("more", "returned the unknown column extra"),
        ("even", "returned the column text 0 times"),
    ],
)
def test_forbidden_result_is_reported_with_the_functions_name(name: str, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        list(stage(name)(iter([BATCH])))


def test_missing_function_or_secret_fails_the_task_at_its_start() -> None:
    PythonFilter(Python(f"{MODULE}:twice", "text STRING"))
    with pytest.raises(UserError, match=f"there is no function thrice in {MODULE}"):
        PythonFilter(Python(f"{MODULE}:thrice"))
    with pytest.raises(UserError, match="there is no secret absent"):
        PythonFilter(Python(f"{MODULE}:twice", options={"unit": "${secret:absent}"}))


def test_python_filter_needs_a_policy_that_names_its_module() -> None:
    part = Component("filter", "python", Python(f"{MODULE}:twice"))
    with pytest.raises(UserError, match=f"does not allow functions of {MODULE}"):
        policy.UNRESTRICTED.require(part)
    policy.parse(f"python: [{MODULE}]", "node.yaml").require(part)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{function: 'a.b:c', adds: 'x DOUBLE, y STRING'}", ""),
        ("{function: 'a.b:c'}", ""),
        ("{function: 'a.b.c'}", "expected a module and a function"),
        ("{function: 'a.b:c', adds: 'host STRING'}", "there is a column host already"),
        ("{function: 'a.b:c', adds: '__seq BIGINT'}", "not beginning with __"),
    ],
)
def test_invalid_options_are_reported(options: str, message: str) -> None:
    text = f"flow: f\nsources: [tail: {{paths: [/a]}}]\nfilters: [python: {options}]\nsinks: [noop]"
    try:
        check_flow(text)
    except SpecError as error:
        assert message and message in str(error)
    else:
        assert not message


def test_error_while_importing_names_line_of_users_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that the module calls raises, in a module of the user's package."""
    package = tmp_path / "flumeng_test_tables"
    package.mkdir()
    (package / "__init__.py").write_text("from flumeng_test_tables import tables\n")
    (package / "tables.py").write_text("import json\n\nKNOWN = json.loads('no JSON')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"JSONDecodeError.* \(line 3 of .*tables\.py\)$"):
        PythonFilter(Python("flumeng_test_tables.tables:twice"))
