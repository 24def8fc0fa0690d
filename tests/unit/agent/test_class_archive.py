"""The archive that makes Spark's start fast: which one is used, and that a missing one is no
trouble."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from flumeng.agent.collector import class_archive
from flumeng.platform.java import find_java


@pytest.mark.slow
def test_archive_fits_one_java_and_one_set_of_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = class_archive.archive_in(tmp_path)
    assert class_archive.archive_in(tmp_path) == before
    other = tmp_path / "java" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.write_text(f'#!/bin/sh\nexec {find_java()} "$@"\n')
    other.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert class_archive.archive_in(tmp_path) != before


def test_archive_lies_with_the_data_unless_a_cache_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLUMENG_CACHE", raising=False)
    assert class_archive.cache_of(tmp_path) == tmp_path / "cache"
    monkeypatch.setenv("FLUMENG_CACHE", "/var/cache/flumeng")
    assert class_archive.cache_of(tmp_path) == Path("/var/cache/flumeng")


def test_only_an_archive_of_our_own_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes are code: an archive placed there by another user would run in the collector."""
    assert class_archive.java_options(tmp_path) == ""
    archive = class_archive.archive_in(tmp_path)
    archive.write_bytes(b"")
    assert f"-XX:SharedArchiveFile={archive}" in class_archive.java_options(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: archive.stat().st_uid + 1)
    assert class_archive.java_options(tmp_path) == ""


@pytest.mark.slow
def test_damaged_archive_is_ignored_silently(tmp_path: Path) -> None:
    class_archive.archive_in(tmp_path).write_bytes(b"no archive" * 1000)
    options = class_archive.java_options(tmp_path).split()
    done = subprocess.run(
        [find_java(), *options, "-version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_archive_is_not_made_without_room(tmp_path: Path) -> None:
    assert class_archive.make_in_background(tmp_path, room_bytes=1 << 60) is None
