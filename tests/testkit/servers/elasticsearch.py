"""A real Elasticsearch, from the jars of Maven Central, to start and kill.

``FLUMENG_TEST_ES=http://HOST:PORT`` names one that runs already, which asks for no credentials.
``FLUMENG_TEST_ES_VERSION=9.2.0`` starts that version instead; it needs Java 21.
The jars have no modules beyond the one for HTTP: an index works fully; ``GET /``, ingest pipelines
and data streams are missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import urllib.request
import zipfile
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from subprocess import DEVNULL

import pyspark
from elasticsearch import Elasticsearch

from flumeng.agent.standalone import embedded
from flumeng.platform import java as platform_java
from flumeng.platform.processes import die_with_parent
from tests.testkit.servers import maven
from tests.testkit.servers.java import find_java
from tests.testkit.servers.server_process import ServerProcess

VERSION = os.environ.get("FLUMENG_TEST_ES_VERSION", "8.19.5")
HEAP_MIB = 1024
TRANSPORT = "transport-netty4"
PLUGIN = f"META-INF/es-plugins/{TRANSPORT}/"
SETTINGS = """\
cluster.name: flumeng
discovery.type: single-node
http.host: 127.0.0.1
http.port: {port}
http.type: netty4
transport.host: 127.0.0.1
transport.port: {transport}
transport.type: netty4
cluster.routing.allocation.disk.threshold_enabled: false
cluster.info.update.interval: 24h
"""
LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1}] %m%n
"""


class RealElasticsearch(ServerProcess):
    """One node on one port for its whole life, with its state in ``data``. ``settings`` are lines
    of its configuration file."""

    name = "Elasticsearch"
    variable = "FLUMENG_TEST_ES"
    configuration = "elasticsearch.yml"
    launcher = "Launcher"

    def __init__(
        self, data: Path, settings: Mapping[str, str] | None = None, version: str = VERSION
    ) -> None:
        super().__init__(data / "server.log")
        self.version = version
        self.data = data
        self.settings = settings or {}
        self.port = embedded.free_port()
        self.transport_port = embedded.free_port()
        self.address = self.given or f"http://127.0.0.1:{self.port}"

    def start(self, *, wait_seconds: float = 90.0) -> None:
        """Start, and return when it answers.

        Raises the errors of ``maven.jars``, and UserError without Java.
        """
        if self.given is None:
            self.launch()
        self.wait_answering(wait_seconds)

    def launch(self) -> None:
        """Start, and do not wait. It ends with the thread that launched it."""
        java = self._java()
        self._install()
        jars = Path(pyspark.__file__).parent / "jars"
        compiler = [
            str(next(jars.glob(f"{name}-*.jar"))) for name in ("janino", "commons-compiler")
        ]
        self._launch(
            [
                *java,
                f"-Xms{HEAP_MIB}m",
                f"-Xmx{HEAP_MIB}m",
                "-cp",
                ":".join([f"{self.data}/lib/*", *compiler]),
                "org.codehaus.janino.JavaSourceClassLoader",
                "-sourcepath",
                str(Path(__file__).parent),
                self.launcher,
            ],
            cwd=self.data,
            stdin=DEVNULL,
            preexec_fn=die_with_parent,
        )

    def wait_answering(self, wait_seconds: float = 90.0) -> None:
        self._wait(self._answers, wait_seconds)

    def stop(self) -> None:
        if self.process is not None:
            self._end(signal.SIGTERM)

    def client(self) -> Elasticsearch:
        return Elasticsearch(self.address, request_timeout=60)

    def _answers(self) -> bool:
        asked = f"{self.address}/_cluster/health?wait_for_status=yellow&timeout=1s"
        try:
            with urllib.request.urlopen(asked, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException):
            return False

    def _java(self) -> list[str]:
        """With the options that the version needs."""
        options = [f"-Des.path.home={self.data}", "-Des.distribution.type=tar"]
        options.append("--add-opens=java.base/java.io=ALL-UNNAMED")
        if int(self.version.partition(".")[0]) < 9:
            return [platform_java.find_java(), *options]
        return [find_java(21), "--enable-native-access=ALL-UNNAMED", *options]

    def _install(self) -> None:
        """The home of a node, as its distribution lays it out."""
        if (self.data / "config").exists():
            return
        for name in ("plugins", "data", "logs", "modules"):
            (self.data / name).mkdir(parents=True)
        self._install_jars()
        scratch = self.data / "unfinished"
        scratch.mkdir()
        lines = [f"{name}: {value}\n" for name, value in self.settings.items()]
        text = SETTINGS.format(port=self.port, transport=self.transport_port) + "".join(lines)
        (scratch / self.configuration).write_text(text)
        (scratch / "log4j2.properties").write_text(LOGGING)
        shutil.move(scratch, self.data / "config")

    def _install_jars(self) -> None:
        lib = maven.jars(f"org.elasticsearch:elasticsearch:{self.version}")
        plugin = maven.jars(f"org.elasticsearch.plugin:{TRANSPORT}:{self.version}")
        module = self.data / "modules" / TRANSPORT
        module.mkdir()
        (self.data / "lib").symlink_to(lib)
        known = {jar.name for jar in lib.iterdir()}
        for jar in plugin.iterdir():
            if jar.name not in known:
                (module / jar.name).symlink_to(jar)
        with zipfile.ZipFile(plugin / f"{TRANSPORT}-{self.version}.jar") as content:
            for name in (n for n in content.namelist() if n.startswith(PLUGIN) and n != PLUGIN):
                found = content.read(name).splitlines()
                kept = [line for line in found if not line.startswith(b"modulename=")]
                (module / name.removeprefix(PLUGIN)).write_bytes(b"\n".join(kept))
