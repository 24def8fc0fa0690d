"""The link of benches: a lost segment is cut out of its packet, and nothing else."""

from __future__ import annotations

import random
import struct

from tests.testkit.ip_link import VIRTIO, Direction, Line, cut

HEADERS = 20 + 20


def packet(payload: bytes, segment: int, seq: int = 2**32 - 5) -> bytes:
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, HEADERS + len(payload), 0, 0, 64, 6, 0, 1, 2)
    tcp = struct.pack(">HHIIBBHHH", 1, 2, seq, 0, 5 << 4, 0x19, 0, 0, 0)
    return VIRTIO.pack(1, 1, HEADERS, segment, 20, 16) + ip + tcp + payload


def parts(found: bytes) -> tuple[int, bytes, int, int]:
    """The sequence number, payload, flags, and kind of segmentation."""
    begin = VIRTIO.size + HEADERS
    (length,) = struct.unpack_from(">H", found, VIRTIO.size + 2)
    assert length == len(found) - VIRTIO.size
    (seq,) = struct.unpack_from(">I", found, VIRTIO.size + 24)
    return seq, found[begin:], found[VIRTIO.size + 33], found[1]


def test_lost_segment_is_cut_out() -> None:
    before, after = cut(packet(b"aaaabbbbccccdd", 4), 1)
    assert parts(before) == (2**32 - 5, b"aaaa", 0x10, 0)
    assert parts(after) == (3, b"ccccdd", 0x19, 1)


def test_first_last_and_only_segment() -> None:
    assert cut(packet(b"aaaabb", 4), 0)[0] == b""
    assert cut(packet(b"aaaabb", 4), 1)[1] == b""
    assert cut(packet(b"aa", 0), 0) == (b"", b"")


def test_share_of_lost_segments() -> None:
    way = Direction(Line(1e12, loss=0.01), random.Random(1))
    for _ in range(2000):
        way.take(packet(b"x" * 400, 4), 0.0)
    arrived = sum(len(parts(sent)[1]) for _, sent in way.waiting) / 4
    assert 0.009 < 1 - arrived / 200_000 < 0.011
