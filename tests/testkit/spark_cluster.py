"""A real standalone cluster of Spark: a master and workers as processes, for tests and benches.

Its executors run in a Python of their own, which has the data libraries and no flumeng.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import venv
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pyspark

from flumeng.agent.standalone.embedded import free_port
from flumeng.platform.java import find_java
from tests.testkit.daemons import children_of
from tests.testkit.waiting import retry

HOST = "127.0.0.1"
SCALA = "2.13"
EXTRA = re.compile(r";.*extra *==")
CLASSES = "org.apache.spark.deploy"


class StandaloneCluster:
    """``workers`` of one core each, with work directories of their own below ``data``. Each has a
    loopback address of its own: Spark runs no copy of a task on the same host.

    Their Python has the packages of the file ``requirements``. ``conf`` are settings of Spark.
    """

    def __init__(
        self,
        data: Path,
        requirements: Path,
        workers: int = 2,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.address = f"spark://{HOST}:{self.port}"
        self.python = data_python(data / "python", requirements)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._data = data
        self._settings = [f"-D{name}={value}" for name, value in (conf or {}).items()]
        self.workers = [f"worker-{number}" for number in range(workers)]

    def start(self, *, wait_seconds: float = 180.0) -> None:
        """Start, and return when the master listens; workers register by themselves."""
        self.start_one("master")
        for name in self.workers:
            self.start_one(name)
        master = retry(
            lambda: socket.create_connection((HOST, self.port), timeout=1),
            OSError,
            (self._data / "master.log").read_text,
            seconds=wait_seconds,
        )
        master.close()

    def start_one(self, name: str) -> None:
        """``master``, or one of ``workers``."""
        host = HOST if name == "master" else f"127.0.0.{1 + self.workers.index(name)}"
        if name == "master":
            arguments = [f"{CLASSES}.master.Master", "--port", str(self.port)]
        else:
            arguments = [f"{CLASSES}.worker.Worker", self.address, "--cores", "1", "--memory", "1g"]
            arguments += ["--work-dir", str(self._data / name)]
        home = Path(pyspark.__file__).parent
        java = [
            find_java(),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            *self._settings,
            "-cp",
            f"{home}/jars/*",
        ]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": SCALA,
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._data / f"{name}-scratch"),
        }
        for known in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            environment.pop(known, None)
        self._data.mkdir(parents=True, exist_ok=True)
        with (self._data / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*java, *arguments, "--host", host, "--webui-port", "0"],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """SIGKILL of the master or a worker; the executors of a worker end by themselves."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def executors(self) -> list[int]:
        """The processes of executors that live now."""
        return [
            child
            for name in self.workers
            if name in self.processes
            for child in children_of(self.processes[name].pid)
        ]

    def kill_executor(self) -> bool:
        """SIGKILL of one; False when there is none."""
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def stop(self) -> None:
        """End all processes; workers first, which end their executors on request."""
        for name in sorted(self.processes, reverse=True):
            self.processes[name].terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()


def data_python(place: Path, requirements: Path) -> str:
    """A Python at ``place`` that has those packages as they are installed here, and no others."""
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, symlinks=True)
        (packages,) = place.glob("lib/python*/site-packages")
        lines = requirements.read_text().splitlines()
        for source in _installed(line for line in lines if line and not line.startswith("#")):
            (packages / source.name).symlink_to(source)
    return str(python)


def _installed(requirements: Iterable[str]) -> set[Path]:
    """The top directories and files of these packages and of their dependencies."""
    found: set[Path] = set()
    left, seen = [_name(line) for line in requirements], set[str]()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another system or Python
        left += [_name(line) for line in package.requires or () if not EXTRA.search(line)]
        for file in package.files or ():
            if file.parts[0] not in ("..", "__pycache__"):
                found.add(Path(str(package.locate_file(file.parts[0]))))
    return found


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()
