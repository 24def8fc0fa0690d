"""A link between two network namespaces that delays, drops and shapes IP packets (Linux, root).

The link is one process with a TUN device in each namespace. TCP hands over up to 64 KB at once, as
to a network card that segments (``IFF_VNET_HDR``); the MTU stays 1500, and rate and loss count
segments of it. A lost segment is cut out of its packet. No qdisc of the kernel is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import math
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

MTU = 1500
CLONE_NEWNET = 0x40000000
"""``os.setns`` is of Python 3.12."""
PACKET_BYTES = 1 << 16
QUEUE_SECONDS = 0.1
"""A packet is dropped that would wait longer for the packets before it."""
READS_AT_ONCE = 64
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x1, 0x1000, 0x4000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TUN_F_CSUM, TUN_F_TSO4 = 1, 2
TCP = 6
VIRTIO = struct.Struct("<BBHHHH")
"""Flags, GSO type, bytes of headers, bytes of a segment, then where the checksum goes."""
PUSH_FIN = 0x09


@dataclass(frozen=True)
class Line:
    """One direction of a link; the other is equal. ``loss`` is a share of segments."""

    bits_per_second: float
    delay_seconds: float = 0.075
    loss: float = 0.001


@dataclass(frozen=True)
class Ends:
    """The namespaces of a link, and the address of each."""

    names: tuple[str, str]
    addresses: tuple[str, str]
    pid: int

    def received_bytes(self, end: int) -> int:
        """Bytes that have arrived over the link in a namespace."""
        name = self.names[end]
        command = ["ip", "-n", name, "-s", "-j", "link", "show", f"{name}t"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return int(found[0]["stats64"]["rx"]["bytes"])

    @contextlib.contextmanager
    def inside(self, end: int) -> Iterator[None]:
        """Move this thread, and what it starts, into a namespace."""
        own, other = Path("/proc/thread-self/ns/net"), Path("/run/netns") / self.names[end]
        with own.open() as back, other.open() as to:
            _enter(to.fileno())
            try:
                yield
            finally:
                _enter(back.fileno())


@contextlib.contextmanager
def linked(line: Line) -> Iterator[Ends]:
    """Make two namespaces and their link; both end with the context."""
    mark = f"fl{os.getpid()}"
    names, addresses = (f"{mark}a", f"{mark}b"), ("10.99.0.1", "10.99.0.2")
    made: list[str] = []
    process = None
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            made.append(name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        setting = msgspec.json.encode({"line": asdict(line), "names": names}).decode()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.testkit.ip_link", setting], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("the link did not start: it needs root, and /dev/net/tun")
        for name, own, other in zip(names, addresses, reversed(addresses), strict=True):
            _run("ip", "-n", name, "addr", "add", own, "peer", other, "dev", f"{name}t")
            _run("ip", "-n", name, "link", "set", f"{name}t", "up", "mtu", str(MTU))
        yield Ends(names, addresses, process.pid)
    finally:
        if process is not None:
            process.terminate()
            process.wait(10)
        for name in made:
            _run("ip", "netns", "del", name)


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@dataclass
class Direction:
    """Packets on their way. ``free_at``: when the line has sent all packets that it has taken."""

    line: Line
    chance: random.Random
    free_at: float = 0.0
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    until_loss: int = 0

    def __post_init__(self) -> None:
        self.until_loss = self._gap()

    def take(self, packet: bytes, now: float) -> None:
        """Send, drop or cut a packet. Its arrival is in ``waiting``, in order."""
        segments, wire_bytes = _size(packet)
        begin = max(now, self.free_at)
        if begin - now > QUEUE_SECONDS:
            return
        self.free_at = begin + wire_bytes * 8 / self.line.bits_per_second
        due = self.free_at + self.line.delay_seconds
        while self.until_loss < segments:
            head, packet = cut(packet, self.until_loss)
            if head:
                self.waiting.append((due, head))
            segments -= self.until_loss + 1
            self.until_loss = self._gap()
        self.until_loss -= segments
        if packet:
            self.waiting.append((due, packet))

    def _gap(self) -> int:
        """Segments until the next lost one."""
        if self.line.loss <= 0:
            return sys.maxsize
        return int(math.log(1 - self.chance.random()) / math.log(1 - self.line.loss))


def _size(packet: bytes) -> tuple[int, int]:
    """Segments of a packet, and their bytes with a header each."""
    whole = len(packet) - VIRTIO.size
    segment = packet[4] | packet[5] << 8
    if not packet[1] or not segment:
        return 1, whole
    headers = _headers(packet)
    segments = max(1, -(-(whole - headers) // segment))
    return segments, whole + (segments - 1) * headers


def _headers(packet: bytes) -> int:
    ip = (packet[VIRTIO.size] & 15) * 4
    return ip + (packet[VIRTIO.size + ip + 12] >> 4) * 4


def cut(packet: bytes, lost: int) -> tuple[bytes, bytes]:
    """Return what comes before and after a segment, each ``b""`` when nothing does."""
    segment = packet[4] | packet[5] << 8
    if not packet[1] or not segment:
        return b"", b""
    begin = VIRTIO.size + _headers(packet)
    at = begin + lost * segment
    return _part(packet, begin, begin, at), _part(packet, begin, at + segment, len(packet))


def _part(packet: bytes, begin: int, start: int, end: int) -> bytes:
    """The packet with its payload from ``start`` to ``end`` only."""
    payload = packet[start:end]
    if not payload:
        return b""
    flags, kind, headers, segment, *checksum = VIRTIO.unpack_from(packet)
    if len(payload) <= segment:
        kind = segment = 0
    made = bytearray(packet[:begin])
    VIRTIO.pack_into(made, 0, flags, kind, headers, segment, *checksum)
    ip = VIRTIO.size
    tcp = ip + (made[ip] & 15) * 4
    struct.pack_into(">H", made, ip + 2, begin - ip + len(payload))
    struct.pack_into(">H", made, ip + 10, 0)
    struct.pack_into(">H", made, ip + 10, _checksum(made[ip:tcp]))
    (number,) = struct.unpack_from(">I", made, tcp + 4)
    struct.pack_into(">I", made, tcp + 4, (number + start - begin) & 0xFFFFFFFF)
    if end < len(packet):
        made[tcp + 13] &= ~PUSH_FIN
    return bytes(made) + payload


def _checksum(header: bytearray) -> int:
    total = sum(int(word) for (word,) in struct.iter_unpack(">H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def carry(devices: tuple[int, int], line: Line) -> None:
    """Carry packets between two devices, until a signal ends the process."""
    poll = select.epoll()
    ways = {}
    for fd, other in (devices, devices[::-1]):
        os.set_blocking(fd, False)
        poll.register(fd, select.EPOLLIN)
        ways[fd] = Direction(line, random.Random(fd)), other
    gc.freeze()
    gc.disable()
    while True:
        due = min((way.waiting[0][0] for way, _ in ways.values() if way.waiting), default=None)
        wait = 1.0 if due is None else max(0.0, due - time.monotonic())
        for fd, _ in poll.poll(wait):
            way, now = ways[fd][0], time.monotonic()
            with contextlib.suppress(BlockingIOError):
                for _ in range(READS_AT_ONCE):
                    way.take(os.read(fd, PACKET_BYTES + VIRTIO.size), now)
        now = time.monotonic()
        for way, out in ways.values():
            waiting = way.waiting
            while waiting and waiting[0][0] <= now:
                with contextlib.suppress(OSError):  # a full queue of the device: lost
                    os.write(out, waiting.popleft()[1])


def open_device(name: str, namespace: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    _run("ip", "link", "set", name, "netns", namespace)
    return fd


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setting = msgspec.json.decode(sys.argv[1])
    first, second = (open_device(f"{name}t", name) for name in setting["names"])
    print("ready", flush=True)
    carry((first, second), Line(**setting["line"]))


if __name__ == "__main__":
    main()
