"""Processes of this host."""

from __future__ import annotations

import pytest

from flumeng.platform import processes

NO_PROCESS = 2**22 + 1


def test_process_of_an_unknown_boot_has_not_certainly_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert processes.has_ended(processes.boot(), NO_PROCESS)
    monkeypatch.setattr(processes, "boot", lambda: "")
    assert not processes.has_ended("", NO_PROCESS)
