"""rsyslog as Debian ships it, to compare with: lines over TCP or UDP into a file.

An event counts when it is in the output file. Both configurations use rsyslog's faster TCP input
(imptcp), the one parser that fits, raw messages, and batches of up to 4096 messages. A queue that
is full holds the sender back and never drops.

- ``durable``: a disk queue that is synced (``queue.syncqueuefiles``). Its index is written every
  thousand messages only, so that after a crash up to a thousand of them are in doubt; with each
  message, as our journal's promise would ask, rsyslog is slower still.
- not durable: a queue in memory, which loses what is in it with the process.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from benches.senders import LINE_BYTES

PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.005
UDP_BUFFER = "16m"
_CONFIGURATION = """
global(workDirectory="{folder}")
module(load="imptcp" threads="2")
module(load="imudp" batchSize="128")
template(name="raw" type="string" string="%rawmsg%\\n")
ruleset(
    name="bench" parser="rsyslog.rfc5424" queue.size="2000000" queue.timeoutenqueue="600000"
    queue.dequeuebatchsize="4096" {queue}
) {{ action(type="omfile" file="{output}" template="raw") }}
input(type="imptcp" address="127.0.0.1" port="{port}" ruleset="bench")
input(type="imudp" address="127.0.0.1" port="{port}" ruleset="bench" rcvbufSize="{buffer}")
"""
_DISK = """queue.type="Disk" queue.filename="bench" queue.maxfilesize="64m"
    queue.syncqueuefiles="on" queue.checkpointinterval="1000" """
_MEMORY = 'queue.type="LinkedList"'


def install() -> bool:
    """Have rsyslogd; from apt when we are root and there is one. Says so when it cannot be had."""
    if not _is_there() and shutil.which("apt-get") and os.geteuid() == 0:
        command = ["apt-get", "install", "-y", "--no-install-recommends", "rsyslog"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if not _is_there():
        print("rsyslogd is not installed: its figures are left out", file=sys.stderr)
    return _is_there()


class Rsyslog:
    """One process with a fresh queue and output in ``folder``."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.place = f"127.0.0.1:{free.getsockname()[1]}"
        self._output = folder / "output"
        configuration = folder / "rsyslog.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                folder=folder,
                output=self._output,
                port=self.place.rpartition(":")[2],
                queue=_DISK if durable else _MEMORY,
                buffer=UDP_BUFFER,
            )
        )
        command = [_path(), "-n", "-f", str(configuration), "-i", str(folder / "pid")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        host, _, port = self.place.rpartition(":")
        deadline = time.monotonic() + 10.0
        while True:
            try:
                socket.create_connection((host, int(port))).close()
            except ConnectionRefusedError:
                assert self._process.poll() is None, "rsyslogd has ended"
                assert time.monotonic() < deadline, "rsyslogd does not listen"
                time.sleep(0.05)
            else:
                return

    def events(self) -> int:
        """How many are in the output. All of them have the same length there."""
        return self._output.stat().st_size // LINE_BYTES if self._output.exists() else 0

    def wait_for(self, events: int, seconds: float = PATIENCE_SECONDS) -> tuple[float, int]:
        """When all are there, or time is up: when that was, and how many were there."""
        deadline = time.monotonic() + seconds
        while (there := self.events()) < events and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return time.monotonic(), there

    def check(self) -> None:
        """The output is whole lines of the expected length."""
        with self._output.open("rb") as file:
            lines = sum(1 for _ in file)
        assert lines == self.events(), f"{lines} lines, {self.events()} by their length"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _is_there() -> bool:
    return Path(_path()).exists()


def _path() -> str:
    return shutil.which("rsyslogd") or "/usr/sbin/rsyslogd"
