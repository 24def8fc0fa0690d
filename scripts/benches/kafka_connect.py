"""Kafka Connect's FileStreamSink over the same topic: a standalone worker that writes lines.

It has StringConverter, two tasks, which append to one file, and a consumer that takes 10,000
records a poll (500 is the default). How far it is tells the size of the file: all lines are of one
length. Timed is from the first lines that are there, without Connect's start, to the last.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from benches.kafka_topic import BODY_BYTES, TOPIC
from flumeng.platform.java import find_java
from tests.testkit.servers.maven import jars
from tests.testkit.servers.server_process import ServerProcess

VERSION = "4.2.0"
ARTIFACTS = [
    f"org.apache.kafka:{name}:{VERSION}"
    for name in ("connect-runtime", "connect-file", "connect-json")
]
WORKER = """\
bootstrap.servers={address}
listeners=http://127.0.0.1:{port}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={folder}/offsets
consumer.max.poll.records=10000
"""
CONNECTOR = """\
name=bench
connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector
tasks.max=2
topics={topic}
file={folder}/lines
"""
PATIENCE_SECONDS = 300.0


class _Connect(ServerProcess):
    name = "Kafka Connect"
    variable = "FLUMENG_TEST_KAFKA_CONNECT"

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder / "connect.log")
        self._folder, self._address = folder, address

    def start(self) -> None:
        self._folder.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        worker, connector = self._folder / "worker", self._folder / "connector"
        worker.write_text(WORKER.format(address=self._address, port=port, folder=self._folder))
        connector.write_text(CONNECTOR.format(topic=TOPIC, folder=self._folder))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        classes = f"{jars(*ARTIFACTS)}/*"
        self._launch(
            [find_java(), "-Xms256m", "-Xmx2g", "-cp", classes, main, str(worker), str(connector)]
        )

    def wait(self, size: int) -> int:
        """Until the file has so many bytes; how many it has."""
        lines, found = self._folder / "lines", 0

        def there() -> bool:
            nonlocal found
            found = lines.stat().st_size if lines.exists() else 0
            return found >= size

        self._wait(there, PATIENCE_SECONDS)
        return found


def measure(address: str, folder: Path, messages: int) -> int:
    """Events a second."""
    line = BODY_BYTES + 1
    connect = _Connect(folder, address)
    connect.start()
    try:
        first = connect.wait(1)
        began = time.monotonic()
        last = connect.wait(messages * line)
        return round((last - first) / line / (time.monotonic() - began))
    finally:
        connect.stop()
