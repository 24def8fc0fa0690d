"""flumeng's own components keep the contract that plug-ins are tested with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flumeng_testkit import FilterContract, SourceContract

from flumeng.connectors.api import Source

SYSLOG = [
    b"<34>1 2026-10-11T22:14:15.003Z mymachine su 12 ID47 - 'su root' failed",
    b"<13>Oct 11 22:14:15 host app[7]: hello",
    b"not syslog",
    b"",
    b"\xff\x00",
]


@pytest.mark.slow
class TestGenerate(SourceContract):
    name = "generate"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"events_per_second": 1000}


@pytest.mark.slow
class TestTail(SourceContract):
    name = "tail"

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"paths": [str(folder / "*.log")], "poll_seconds": 0.05}

    async def send(self, _source: Source, folder: Path) -> None:
        with (folder / "a.log").open("a") as file:
            file.write("a line\n")


@pytest.mark.slow
class TestTcp(SourceContract):
    name = "tcp"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"listen": "127.0.0.1:0"}

    async def send(self, source: Source, _folder: Path) -> None:
        host, _, port = source.addresses[0].rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"a line\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@pytest.mark.slow
class TestUdp(SourceContract):
    name = "udp"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"listen": "127.0.0.1:0"}

    async def send(self, source: Source, _folder: Path) -> None:
        host, _, port = source.addresses[0].rpartition(":")
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(host, int(port))
        )
        transport.sendto(b"a line")
        transport.close()


class TestParse(FilterContract):
    name = "parse"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"format": "syslog"}

    def bodies(self) -> list[bytes]:
        return SYSLOG


class TestSet(FilterContract):
    name = "set"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"site": "north"}


class TestRename(FilterContract):
    name = "rename"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"host": "origin"}


class TestDrop(FilterContract):
    name = "drop"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"columns": ["attrs"]}


class TestRedact(FilterContract):
    name = "redact"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"columns": ["body"], "kinds": ["email", "ipv4"]}


class TestSample(FilterContract):
    name = "sample"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"rate": 0.5}
