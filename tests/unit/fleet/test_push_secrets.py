"""Secrets are read on the host of the push, and are in no message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flumeng.platform.errors import UserError
from flumeng.platform.secrets import resolve

NAME = "fra-zookeeper"
REFERENCE = f"${{secret:{NAME}}}"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLUMENG_SECRETS", str(tmp_path))
    monkeypatch.delenv("FLUMENG_SECRET_FRA_ZOOKEEPER", raising=False)
    return tmp_path


def written(directory: Path, content: bytes, mode: int = 0o600) -> Path:
    path = directory / NAME
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_environment_overrides_the_file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(directory, b"push:file\n")
    assert resolve(REFERENCE) == "push:file"
    monkeypatch.setenv("FLUMENG_SECRET_FRA_ZOOKEEPER", "push:variable")
    assert resolve(REFERENCE) == "push:variable"


def test_missing_secret_is_reported_with_both_places(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = f"set FLUMENG_SECRET_FRA_ZOOKEEPER, or write it to {directory}/{NAME}"
    with pytest.raises(UserError, match=both):
        resolve(REFERENCE)
    monkeypatch.delenv("FLUMENG_SECRETS")
    with pytest.raises(UserError, match=r"file fra-zookeeper in \$FLUMENG_SECRETS"):
        resolve(REFERENCE)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_file_that_others_may_read_is_refused_without_its_content(
    directory: Path, mode: int
) -> None:
    written(directory, b"push:hunter2", mode)
    with pytest.raises(UserError, match="is open to others") as error:
        resolve(REFERENCE)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"hunter2\xff", "is not UTF-8"), (b"hunter2" * 10_000, "is larger"), (b"", "no secret")],
)
def test_file_that_holds_no_valid_secret_is_refused(
    directory: Path, content: bytes, told: str
) -> None:
    written(directory, content)
    with pytest.raises(UserError, match=told) as error:
        resolve(REFERENCE)
    assert "hunter2" not in str(error.value)
    assert error.value.__cause__ is None


def test_fifo_in_place_of_a_secret_does_not_block(directory: Path) -> None:
    os.mkfifo(directory / NAME, 0o600)
    with pytest.raises(UserError, match="no secret"):
        resolve(REFERENCE)


@pytest.mark.parametrize("text", ["push:hunter2", "${secret:../../etc/passwd}", "${secret:}", ""])
def test_malformed_reference_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(UserError, match="expected a reference") as error:
        resolve(text)
    assert not text or text not in str(error.value)
