"""A real Spark Connect server, started from PySpark's own jars.

Its Python workers run in a Python of their own, which has the data libraries and no flumeng.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pyspark

from flumeng.agent.standalone.embedded import free_port
from tests.testkit.spark_cluster import SCALA, data_python
from tests.testkit.waiting import retry

HOST = "localhost"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
REQUIREMENTS = Path("conf/spark/executors.txt")


class ConnectServer:
    """A server at one port. ``python``: of its workers, which find the modules of the directory
    ``modules`` too. ``conf``: settings of Spark."""

    def __init__(
        self,
        data: Path,
        *,
        token: str = "",
        python: str = "",
        modules: Path | None = None,
        conf: Mapping[str, str] | None = None,
        master: str = "local[2]",
    ) -> None:
        self.port = free_port()
        self.url = f"sc://{HOST}:{self.port}"
        self.python = python or data_python(data / "python", REQUIREMENTS)
        self.home = Path(pyspark.__file__).parent
        self.process: subprocess.Popen[bytes] | None = None
        self._data = data
        self._modules = modules
        self._token = token
        self._master = master
        self._conf = dict(conf or {})

    @property
    def log(self) -> str:
        return (self._data / "connect.log").read_text()

    def start(self, *, wait_seconds: float = 600.0) -> None:
        """Start, and return when the server listens."""
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.memory": "768m",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(self._data / "scratch"),
            "spark.sql.warehouse.dir": str(self._data / "warehouse"),
            **self._conf,
        }
        given = [part for name, text in settings.items() for part in ("--conf", f"{name}={text}")]
        submit = [str(self.home / "bin" / "spark-submit"), "--master", self._master]
        command = [*submit, "--class", SERVER, *given, "spark-internal"]
        self._data.mkdir(parents=True, exist_ok=True)
        with (self._data / "connect.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self._data, env=self._environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        server = retry(
            lambda: socket.create_connection((HOST, self.port), timeout=1),
            OSError,
            lambda: self.log,
            seconds=wait_seconds,
        )
        server.close()

    def _environment(self) -> dict[str, str]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(self.home),
            "SPARK_SCALA_VERSION": SCALA,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": self.python,
        }
        for known in ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON", "SPARK_CONNECT_MODE_ENABLED"):
            environment.pop(known, None)
        if self._modules is not None:
            environment["PYTHONPATH"] = str(self._modules)
        if self._token:
            environment[TOKEN_VARIABLE] = self._token
        return environment

    def kill(self) -> None:
        """SIGKILL of the server; its Python workers end by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None
