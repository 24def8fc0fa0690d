"""Java: an error says how to get one that can be used."""

from __future__ import annotations

import pytest

from flumeng.platform.errors import UserError
from flumeng.platform.java import find_java


def test_invalid_java_home_is_named_with_its_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(UserError) as raised:
        find_java()
    assert str(raised.value).startswith(
        "no java found in JAVA_HOME, /nowhere: correct or unset JAVA_HOME, or install Java 17"
    )
