"""Which functions of a module the sink ``python`` calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.python.options import Python
from flumeng.connectors.python.sink import PythonSink
from flumeng.platform.errors import UserError

TASK = TaskRevision("web", "collect.0", 1)
MODULE = "flumeng_test_package"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / MODULE
    package.mkdir()
    (package / "below.py").write_text("def shown(rows, batch_id):\n    pass\n")
    (tmp_path / f"{MODULE}2.py").write_text("def other(rows, batch_id):\n    pass\n")
    (package / "__init__.py").write_text(
        "from functools import partial, wraps\n"
        "from subprocess import run\n"
        f"from {MODULE}.below import shown\n"
        f"from {MODULE}2 import other\n"
        "def own(rows, batch_id):\n    pass\n"
        "@wraps(own)\ndef wrapped(rows, batch_id):\n    pass\n"
        "class Store:\n    def __call__(self, rows, batch_id):\n        pass\n"
        "store = Store()\n"
        "part = partial(run, 'x')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("name", ["own", "wrapped", "shown", "store"])
def test_function_or_class_defined_in_a_module_is_called(name: str) -> None:
    PythonSink(Python(function=f"{MODULE}:{name}"), TASK)


@pytest.mark.parametrize(
    ("name", "home"), [("run", "subprocess"), ("other", f"{MODULE}2"), ("part", "functools")]
)
def test_imported_function_is_refused(name: str, home: str) -> None:
    with pytest.raises(UserError, match=rf"{name} of {MODULE} comes from {home}: name the module"):
        PythonSink(Python(function=f"{MODULE}:{name}"), TASK)
