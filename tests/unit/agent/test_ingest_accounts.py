"""An ingest worker's accounts of its journals: the position of their flow, for any other
readers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.worker import Worker
from flumeng.agent.node.protocol import Message
from flumeng.journal.serving.account import Account
from flumeng.journal.serving.client import JournalClient
from tests.testkit.waiting import PATIENCE_SECONDS, async_wait_for
from tests.unit.agent.test_ingest_liveness import configure


def test_a_slow_reader_of_a_journal_does_not_make_its_flow_late(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("".join(f"{n}\n" for n in range(10)))
    said: list[Message] = []
    store = JournalStore(tmp_path / "data", "here")

    def look(address: str) -> Account:
        with JournalClient(address, PATIENCE_SECONDS) as client:
            (account,) = client.accounts().values()
        return account

    async def follow() -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        running = asyncio.create_task(Worker(store, ("127.0.0.1", 0), said.append).run(messages))
        messages.put_nowait(configure(log, "disk"))
        await async_wait_for(lambda: [one.safe for one in store.journals.values()] == [10])
        (journal,) = store.journals
        messages.put_nowait({"type": "acks", "acks": {journal: 2}})
        await async_wait_for(lambda: store.journals[journal].acked == 2)
        address = said[0]["address"]
        slowest = await asyncio.to_thread(look, address)
        assert (slowest.acked, slowest.oldest_unacked_us is None) == (2, False)
        messages.put_nowait({"type": "delivered", "acks": {journal: 10}})
        await async_wait_for(lambda: not messages.qsize())
        own = await asyncio.to_thread(look, address)
        assert (own.acked, own.unacked, own.oldest_unacked_us) == (10, 0, None)
        assert store.journals[journal].acked == 2, "it is kept for the slower one"
        messages.put_nowait({"type": "stop"})
        await asyncio.wait_for(running, PATIENCE_SECONDS)

    asyncio.run(follow())
