"""What a command prints, as the event loop of a worker takes it."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from flumeng.ingest import exec as exec_module
from flumeng.ingest.chunk import Chunk
from flumeng.ingest.exec import ExecSource
from flumeng.ingest.source import Inlet
from flumeng.spec.sources import Exec

PATIENCE_SECONDS = 60.0


def test_what_a_command_printed_waits_for_the_end_of_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the command has ended meanwhile."""
    monkeypatch.setattr(exec_module, "LAST_OUTPUT_SECONDS", 0.1)
    chunks: list[Chunk] = []

    async def test() -> None:
        inlet = Inlet("me", {}, chunks.append, lambda _: None, lambda: None)
        source = ExecSource(Exec(command=("/usr/bin/seq", "1000"), mode="once"), inlet)
        source.pause()
        await source.start()
        await asyncio.sleep(1.0)
        assert not chunks
        source.resume()
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not (chunks and chunks[-1].state):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        await source.stop()

    uvloop.run(test())
    assert b"".join(chunk.data for chunk in chunks).split() == [b"%d" % n for n in range(1, 1001)]
