"""The reader's side of watches, on many servers in one event loop. Flight's client takes a thread
for each open call, so this module speaks gRPC with the same server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import grpc
import grpc.aio
import msgspec
from pyarrow import flight

from flumeng.journal.log.contract import Position
from flumeng.journal.serving.proof import Proof, of_process
from flumeng.journal.serving.watch import WatchAnswer, WatchRequest
from flumeng.journal.serving.wire import POSITIONS, WATCH
from flumeng.platform.errors import CorruptError, UnavailableError

DO_ACTION = "/arrow.flight.protocol.FlightService/DoAction"
GRACE_SECONDS = 3.0
"""A server counts as unavailable when an answer or a connection is this late."""
OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # else it inherits the back-off of failed channels
    ("grpc.enable_http_proxy", 0),
)


async def watch(
    address: str, request: WatchRequest, prove: Callable[[], Proof | None] = of_process
) -> AsyncGenerator[WatchAnswer, None]:
    """Yield the positions of the requested journals, then changes, until the server ends the watch;
    an older server sends all positions once. Raises UnavailableError when the server refuses or is
    late, CorruptError for a malformed answer, and the errors of ``prove``."""
    channel = _channel(address, prove())
    silence_seconds = request.heartbeat_seconds + GRACE_SECONDS
    try:
        try:
            encoded = msgspec.json.encode(request)
            async for body in _act(channel, WATCH, encoded, silence_seconds):
                yield msgspec.json.decode(body, type=WatchAnswer)
        except grpc.aio.AioRpcError as error:
            if "no action 'watch'" not in str(error.details()):
                raise
            async for body in _act(channel, POSITIONS, b"", silence_seconds):
                yield _only(request, msgspec.json.decode(body, type=dict[str, Position]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(
            f"this flumeng cannot read the answer of {address} to {WATCH}: {error}"
        ) from error
    except grpc.aio.AioRpcError as error:
        raise UnavailableError(f"server {address} ended the watch: {error.details()}") from error
    except TimeoutError as error:
        raise UnavailableError(
            f"server {address} has sent nothing for {silence_seconds:g} s, not even a heartbeat"
        ) from error
    finally:
        await channel.close()


def _channel(address: str, proof: Proof | None) -> grpc.aio.Channel:
    if proof is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    credentials = grpc.ssl_channel_credentials(proof.ca, proof.key.encode(), proof.certificate)
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


async def _act(
    channel: grpc.aio.Channel, action: str, body: bytes, silence_seconds: float
) -> AsyncGenerator[bytes, None]:
    """Yield the answers to one action. Raises TimeoutError when an answer is late."""
    call = channel.unary_stream(DO_ACTION)(flight.Action(action, body).serialize())
    try:
        while True:
            async with asyncio.timeout(silence_seconds):
                answer = await call.read()
            if answer is grpc.aio.EOF:
                return
            try:
                yield flight.Result.deserialize(answer).body.to_pybytes()
            except (flight.FlightError, OSError, ValueError) as error:
                raise CorruptError(f"the answer to {action} is not Arrow Flight") from error
    finally:
        call.cancel()


def _only(request: WatchRequest, positions: dict[str, Position]) -> WatchAnswer:
    return WatchAnswer(
        {name: positions[name] for name in request.journals if name in positions},
        tuple(name for name in request.journals if name not in positions),
    )
