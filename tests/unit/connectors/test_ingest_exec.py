"""The output of a command, as the event loop of a worker takes it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.connectors.api.source import SourceContext
from flumeng.connectors.exec import source as exec_source
from flumeng.connectors.exec.options import Exec
from flumeng.connectors.exec.source import LAST_OUTPUT_SECONDS, ExecSource
from flumeng.platform.scrubbing import Secret
from tests.testkit.waiting import async_wait_for


@pytest.mark.slow
def test_output_of_a_command_waits_for_the_end_of_a_pause() -> None:
    """Also when the command has ended meanwhile."""
    blocks: list[ReceivedBlock] = []

    async def test() -> None:
        context = SourceContext("me", {}, blocks.append, lambda _: None, lambda: None)
        source = ExecSource(
            Exec(command=("/bin/sh", "-c", "sleep 0.3; seq 1000"), mode="once"), context
        )
        source.pause()
        await source.start()
        await asyncio.sleep(0.5 + LAST_OUTPUT_SECONDS)
        assert not blocks
        source.resume()
        await async_wait_for(lambda: blocks and blocks[-1].state)
        await source.stop()

    uvloop.run(test())
    assert b"".join(block.data for block in blocks).split() == [b"%d" % n for n in range(1, 1001)]


@pytest.mark.slow
def test_problem_of_a_command_ends_when_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it shows no secret that the command prints."""
    monkeypatch.setattr(exec_source, "HEALTHY_SECONDS", 0.1)
    secret, problems = Secret("opensesame"), []

    async def test() -> None:
        context = SourceContext(
            "me", {}, lambda _: None, lambda _: None, lambda: problems.append(source.problem)
        )
        ran = f"test -e {tmp_path}/ran && exec sleep 60; touch {tmp_path}/ran"
        words = ("/bin/sh", "-c", f"{ran}; echo {secret} >&2; exit 3")
        source = ExecSource(Exec(command=words), context)
        await source.start()
        await async_wait_for(lambda: len(problems) == 2)
        await source.stop()

    uvloop.run(test())
    assert problems == ["exec: /bin/sh ended with status 3: ***", None]
