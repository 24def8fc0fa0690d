"""The appender of a journal: a block that cannot be stored harms no other, and is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from flumeng.agent.ingest.journal_appender import JournalAppender
from flumeng.connectors.api.counters import Counters
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.memory import MemoryJournal
from tests.testkit.journal import TroubledDisk

RULES = LineRules(max_line_bytes=100, trailers=b"", keep_empty=False)
GOOD = Origin("h", (("path", "/good"),), RULES)
BAD = Origin("h", (("path", "/\udcff"),), RULES)


def test_unfit_block_is_left_out_counted_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those around it, of the same commit and of other sources, are durable."""
    failed: list[Exception] = []
    durable: list[tuple[int, int]] = []
    unfit: list[str] = []

    async def test() -> None:
        journal = MemoryJournal.create(tmp_path, "f.n.0.00000001")
        appender = JournalAppender(journal, lambda _: None, failed.append)
        good, bad = Counters(), Counters()
        for number, (origin, counters) in enumerate([(GOOD, good), (BAD, bad), (GOOD, good)]):
            block = ReceivedBlock(
                b"line %d\n" % number,
                origin,
                0,
                on_durable=lambda end, number=number: durable.append((number, end)),  # type: ignore[misc]
                on_unfit=unfit.append,
            )
            appender.submit(block, counters)
        await appender.drain(60)
        await appender.stop()
        assert journal.safe == 2
        assert (good.events, good.discarded_bytes) == (2, 0)
        assert (bad.events, bad.bytes, bad.discarded_bytes) == (0, 7, 7)
        journal.close()

    uvloop.run(test())
    assert [number for number, _ in durable] == [0, 2]
    assert durable[-1][1] == 2
    assert len(unfit) == 1
    assert "surrogates not allowed" in unfit[0]
    assert "7 bytes from h cannot be stored and are lost" in caplog.text
    assert failed == []


def test_source_state_counts_as_journaled_once_it_is_durable(tmp_path: Path) -> None:
    """Notes about a source are dropped then, and a power cut may take the unsynced ones."""
    disk = TroubledDisk()
    journal = Journal.create(tmp_path, "f.n.0.00000001", disk=disk)
    seen: list[tuple[bool, bool]] = []

    async def test() -> None:
        appender = JournalAppender(journal, lambda _: None, lambda _: None)
        disk.before_sync = lambda: seen.append(("a" in journal.state, "a" in appender.durable_keys))
        for state in ({"a": 1, "b": 1}, {"b": None}):
            appender.submit(ReceivedBlock(b"", GOOD, 0, state=state), Counters())
            await appender.drain(60)
        assert appender.durable_keys == {"a"}
        await appender.stop()

    uvloop.run(test())
    assert seen[0] == (True, False)
    journal.close()
