"""The worker's process: arguments, pipes to the node, signals and limits."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path

import uvloop

from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.liveness import Opening
from flumeng.agent.ingest.worker import Worker
from flumeng.agent.ingest.worker_group import WorkerGroup
from flumeng.agent.node.protocol import Message, Parent
from flumeng.agent.node.target_checks import TargetChecks
from flumeng.config import policy
from flumeng.config.policy_file import PolicyFile
from flumeng.journal.replicas.replicas import Replicas
from flumeng.journal.serving.wire import CHECK_TARGETS
from flumeng.platform import logs, processes, secrets
from flumeng.platform.errors import UserError
from flumeng.platform.listening import reserved_files
from flumeng.platform.security import process

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005

ENOUGH_FILES = 16_384
"""Open files needed by a source with the default number of connections."""

STOP: Message = {"type": "stop"}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flumeng.agent.ingest",
        description="Receives events into journals and serves them; started by a node.",
    )
    parser.add_argument("--data", type=Path, required=True, help="the node's data directory")
    parser.add_argument("--host", required=True, help="the address of the journals for other nodes")
    parser.add_argument("--port", type=int, default=0, help="at that host; 0 for a free one")
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument("--worker", type=int, default=0, help="the number of this worker")
    parser.add_argument("--workers", type=int, default=1, help="the number of workers of the node")
    parser.add_argument("--policy", type=Path, help="the file that limits flows on this node")
    parser.add_argument("--metrics-channel", type=int, help="the descriptor of metrics requests")
    arguments = parser.parse_args()
    group = WorkerGroup(arguments.worker, arguments.workers)
    logs.to_stderr("ingest" if group.size == 1 else f"ingest.{group.number}")
    parent = Parent.take_stdio()
    processes.go_on_without_parent()
    sys.setswitchinterval(SWITCH_SECONDS)
    allow_many_files()
    process.serve_as("node")
    try:
        keystore = process.keystore()
        allowed = policy.load(arguments.policy)
        secrets.use(allowed.secrets)
        replicas = Replicas(
            arguments.node, arguments.data / "copies" if group.number == 0 else None
        )
        journal_store = JournalStore(
            arguments.data,
            arguments.node,
            group,
            allowed.journal_bytes,
            Opening(parent.send),
            replicas=replicas,
        )
    except UserError as error:
        print(f"ingest: {error}", file=sys.stderr)
        return 2
    address = (arguments.host, arguments.port)
    checks = TargetChecks(arguments.data, arguments.policy, allowed)
    worker = Worker(
        journal_store,
        address,
        parent.send,
        group,
        allowed,
        granted=PolicyFile(arguments.policy, allowed).granted,
        keystore=keystore,
        actions={CHECK_TARGETS: checks.answer},
    )
    if arguments.metrics_channel is not None:
        from flumeng.platform.metrics import endpoint  # noqa: PLC0415  # only then it costs memory

        name, channel = f"ingest.{group.number}", arguments.metrics_channel
        endpoint.serve(name, worker.health, worker.measures.readings, descriptor=channel)
    worker.measures.start()
    uvloop.run(_serve(worker, parent))
    logging.shutdown()
    os._exit(0)  # a primary elsewhere that keeps its connection would hold up the exit


async def _serve(worker: Worker, parent: Parent) -> None:
    """Run the worker until ``stop``, the parent's end, SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[Message] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before the parent
            try:
                for message in parent.messages():
                    loop.call_soon_threadsafe(messages.put_nowait, message)
            finally:
                loop.call_soon_threadsafe(messages.put_nowait, STOP)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, messages.put_nowait, STOP)
    threading.Thread(target=read, name="parent", daemon=True).start()
    await worker.run(messages)


def allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < ENOUGH_FILES:
        log.warning(
            "open files are limited to %d, and connections to fewer than %d: raise the limit "
            "(LimitNOFILE in the systemd unit) for more",
            *(hard, hard - reserved_files(hard)),
        )
