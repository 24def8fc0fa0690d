"""``python -m flumeng.agent.filtering``: a gateway starts it when another site reads filtered
events. It ends when the gateway does."""

from __future__ import annotations

import argparse
import logging
import os
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pyarrow as pa

from flumeng.agent.filtering import row_filters
from flumeng.agent.node.filter_protocol import Answer, Request
from flumeng.config import policy
from flumeng.journal.serving import filtered_wire
from flumeng.journal.serving.wire import ERROR_KINDS
from flumeng.platform import logs, processes, secrets
from flumeng.platform.errors import FlumengError

log = logging.getLogger(__name__)

parser = argparse.ArgumentParser(prog="flumeng.agent.filtering", description=__doc__)
parser.add_argument("--socket", required=True, type=int, help="the descriptor of requests")
parser.add_argument("--policy", type=Path, help="the file that limits flows on this node")


def main() -> None:
    given = parser.parse_args()
    logs.to_stderr("filters")
    processes.go_on_without_parent()
    secrets.use(policy.load(given.policy).secrets)
    gateway = Connection(given.socket)
    while True:
        try:
            request = msgspec.msgpack.decode(gateway.recv_bytes(), type=Request)
        except (EOFError, OSError):
            return
        gateway.send_bytes(msgspec.msgpack.encode(answer(request)))


def answer(request: Request) -> Answer:
    """Return the answer to a request; an error is an answer too."""
    try:
        filters = row_filters.of(request.text)
        if not request.events:
            return Answer(filters.schema.serialize().to_pybytes())
        (events,) = filtered_wire.read(request.events)
        return Answer(filters.run(events))
    except FlumengError as error:
        kind = next((kind for kind, type_ in ERROR_KINDS if isinstance(error, type_)), "corrupt")
        return Answer(kind=kind, message=str(error))
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError, LookupError) as error:
        log.exception("the filters of a flow failed")
        return Answer(kind="corrupt", message=f"its filters failed: {error}")


if __name__ == "__main__":
    main()
    os._exit(0)
