"""The output of a command, as the event loop of a worker takes it."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.connectors.api.source import SourceContext
from flumeng.connectors.exec.options import Exec
from flumeng.connectors.exec.source import LAST_OUTPUT_SECONDS, ExecSource
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
