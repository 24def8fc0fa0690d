"""A real Elasticsearch, from the jars of Maven Central, to start and kill.

The jars have no modules beyond the one for HTTP: what an index does is all there; ``GET /``, ingest
pipelines and data streams are not.
"""

from __future__ import annotations

import shutil
import signal
import zipfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL

import pyspark
from elastic_transport import ConnectionError as NoConnectionError
from elastic_transport import ConnectionTimeout
from elasticsearch import ApiError, Elasticsearch

from flumeng.runtime import embedded
from flumeng.runtime.parentage import die_with_parent
from flumeng.sinks.testing import maven
from flumeng.sinks.testing.server_process import ServerProcess

VERSION = "8.19.5"
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

    def __init__(self, data: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(data / "server.log")
        self.data = data
        self.settings = settings or {}
        self.port = embedded.free_port()
        self.transport_port = embedded.free_port()
        self.address = f"http://127.0.0.1:{self.port}"

    def start(self, *, wait_seconds: float = 90.0) -> None:
        """Start, and return when it answers. Raises what ``maven.jars`` raises, and UserError
        without Java."""
        self.launch()
        self.wait_answering(wait_seconds)

    def launch(self) -> None:
        """Start, and do not wait. It ends with the thread that launched it."""
        self._install()
        jars = Path(pyspark.__file__).parent / "jars"
        compiler = [
            str(next(jars.glob(f"{name}-*.jar"))) for name in ("janino", "commons-compiler")
        ]
        self._launch(
            [
                embedded.find_java(),
                f"-Xms{HEAP_MIB}m",
                f"-Xmx{HEAP_MIB}m",
                "--add-opens=java.base/java.io=ALL-UNNAMED",
                f"-Des.path.home={self.data}",
                "-Des.distribution.type=tar",
                "-cp",
                ":".join([f"{self.data}/lib/*", *compiler]),
                "org.codehaus.janino.JavaSourceClassLoader",
                "-sourcepath",
                str(Path(__file__).parent),
                "Launcher",
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
        client = Elasticsearch(self.address, request_timeout=2, max_retries=0)
        try:
            client.cluster.health(wait_for_status="yellow", timeout="1s")
        except (NoConnectionError, ConnectionTimeout, ApiError):
            return False
        finally:
            client.close()
        return True

    def _install(self) -> None:
        """The home of a node, as its distribution lays it out."""
        if (self.data / "config").exists():
            return
        lib = maven.jars(f"org.elasticsearch:elasticsearch:{VERSION}")
        plugin = maven.jars(f"org.elasticsearch.plugin:{TRANSPORT}:{VERSION}")
        module = self.data / "modules" / TRANSPORT
        module.mkdir(parents=True)
        for name in ("plugins", "data", "logs"):
            (self.data / name).mkdir()
        (self.data / "lib").symlink_to(lib)
        known = {jar.name for jar in lib.iterdir()}
        for jar in plugin.iterdir():
            if jar.name not in known:
                (module / jar.name).symlink_to(jar)
        with zipfile.ZipFile(plugin / f"{TRANSPORT}-{VERSION}.jar") as content:
            for name in (n for n in content.namelist() if n.startswith(PLUGIN) and n != PLUGIN):
                found = content.read(name).splitlines()
                kept = [line for line in found if not line.startswith(b"modulename=")]
                (module / name.removeprefix(PLUGIN)).write_bytes(b"\n".join(kept))
        scratch = self.data / "unfinished"
        scratch.mkdir()
        lines = [f"{name}: {value}\n" for name, value in self.settings.items()]
        text = SETTINGS.format(port=self.port, transport=self.transport_port) + "".join(lines)
        (scratch / "elasticsearch.yml").write_text(text)
        (scratch / "log4j2.properties").write_text(LOGGING)
        shutil.move(scratch, self.data / "config")
