"""The Spark session of a collector, and all of its settings.

The driver writes only below the collector's own directory. The JVM reads a pipe of this process and
ends with it. On a cluster, executors get flumeng's code from the driver and events from the
journals' servers; they need only two ports of the driver's host.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from flumeng.agent.collector import worker_daemon
from flumeng.config import registry
from flumeng.config.spark import SparkOptions
from flumeng.events.lazy_batch import BYTES_AT_ONCE, ROWS_AT_ONCE
from flumeng.platform import cores, java, private_directory, secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.scrubbing import scrub

ON_THIS_HOST = SparkOptions()
LOOPBACK = "127.0.0.1"
PYTHON = "python3"
CONNECT_SECONDS = 5.0
LOOK_SECONDS = 5.0
SAME_VERSION = f"does it run Spark {pyspark.__version__}?"
REDACTED = "(?i)secret|passw(or)?d|token|credential|(access|account|private)[.-]?key"
DRIVER_MEMORY = "768m"
GARBAGE_COLLECTOR = "-XX:+UseSerialGC"
"""In so small a heap the parallel collector takes 20 MB more. With G1, Java's default, Spark SQL
needs more processor time than with the parallel one."""
HEAP_SIZES = "-Xms144m -Xmn48m"
"""Initial size of the heap, and size of its young generation. An idle session keeps 54 MB of
objects. Java's defaults are a 64th of the host's memory and a third of the heap; garbage fills
them."""
LATE_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times Java's thresholds of its optimizing compiler, which else takes a third of the processor
time until the first batch. Code that each row runs still reaches them in the first second."""
CHOSEN = re.compile(r"-XX:\+Use\w+GC\b")
WORKER_ENVIRONMENT = {
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}
"""Environment of Python workers. Filters allocate and free arrays of about a MiB all the time; by
default the C library returns each to the kernel, at a quarter of the processor time, and Arrow's
own allocator at a seventh. PYTHONSAFEPATH: nothing is imported from the working directory."""
WORKER_DAEMON = "spark.python.daemon.module"
RETAINED = {
    "spark.ui.retainedJobs": "500",
    "spark.ui.retainedStages": "500",
    "spark.ui.retainedTasks": "500",
    "spark.ui.retainedDeadExecutors": "20",
    "spark.sql.ui.retainedExecutions": "50",
}
"""Bounds of Spark's history, which it keeps even without its web interface; tasks per stage."""
PACKAGES = ("flumeng", "zkschema")
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
LARGE_ROWS_AT_ONCE = 256
PARTITIONS_OF_TABLES = "spark.sql.leafNodeDefaultParallelism"
TASKS_PER_CORE = 2
"""Tasks of a core on one host. Those of small batches mostly wait for a server and a disk."""
NO_LIMIT = 2**31 - 1
"""No limit on a batch's bytes: measuring after each row takes Spark longer than writing the row."""
SOCKET_DIRECTORY_BYTES = 104 - len("/.") - 36 - len(".sock")
"""Longest path of the directory of Spark's sockets, whose names are UUIDs."""
LOGGING = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} spark %-5p %c{1}: %m%n
# Spark's Python gateway sets the root level to that of its own logger.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# A failed batch is reported by us, in one sentence.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""


def start(
    directory: Path,
    options: SparkOptions = ON_THIS_HOST,
    *,
    host: str = LOOPBACK,
    more_java_options: str = "",
    more_settings: Mapping[str, str] = {},
    spare_tasks: int = 0,
    waits: Callable[[str], None] = lambda _: None,
) -> SparkSession:
    """Start Spark with its state in ``directory``, which is emptied first. Locally ``spare_tasks``
    run in addition to ``TASKS_PER_CORE``. ``more_settings``: without secrets. ``waits`` is called
    every 5 s with the reason while a standalone master accepts no application. Raises UserError for
    Java, ``directory`` and secrets, UnavailableError when the master does not answer or Spark does
    not start."""
    java.find_java()
    _reach(options.master)
    scratch, logging = directory / "scratch", directory / "log4j2.properties"
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=private_directory.DIRECTORY_MODE)
        scratch.mkdir(mode=private_directory.DIRECTORY_MODE)
        private_directory.write_private(logging, LOGGING)
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}") from error
    _hide(directory / "conf", options)
    if options.ui:  # no setting binds the interface to an address
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = sys.executable if options.local else options.python or PYTHON
    java_options = f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={logging}"
    java_options = f"{java_options} -XX:-UsePerfData {garbage_collector(os.environ)}"
    java_options = f"{java_options} {HEAP_SIZES} {LATE_COMPILER}"
    if more_java_options:
        java_options = f"{java_options} {more_java_options}"
    settings = {
        "spark.app.name": "flumeng",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": LOOPBACK if options.local else host,
        "spark.driver.bindAddress": LOOPBACK if options.local else host,
        "spark.local.dir": str(scratch),
        "spark.redaction.regex": REDACTED,
        "spark.scheduler.mode": "FAIR",
        "spark.sql.catalogImplementation": "in-memory",
        **session_settings(options.cores or os.cpu_count() or 1),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
        **WORKER_ENVIRONMENT,
        **({f"spark.executorEnv.{worker_daemon.PLUG_INS}": "yes"} if registry.plug_ins() else {}),
        **_ui_settings(options),
        **_parallelism(options, spare_tasks),
        **_given_settings(options),
        **({WORKER_DAEMON: worker_daemon.__name__, **_sockets(scratch)} if options.local else {}),
        **more_settings,
    }
    try:
        with _waiting(options, waits):
            context = SparkContext.getOrCreate(SparkConf().setAll([*settings.items()]))
        try:
            session = SparkSession.builder.getOrCreate()
            if not options.local:
                context.addPyFile(str(archive(directory)))
        except Py4JError:
            context.stop()  # later attempts would get this one
            raise
    except (Py4JError, PySparkRuntimeError) as error:
        question = f": {SAME_VERSION}" if options.standalone else ""
        text = f"Spark does not start on {options.master}: {_reason(error)}{question}"
        raise UnavailableError(text) from error
    return session


@contextmanager
def _waiting(options: SparkOptions, waits: Callable[[str], None]) -> Iterator[None]:
    """Call ``waits`` every 5 s on a standalone master: Spark waits a minute for one of another
    version, which does not understand it."""
    ended = threading.Event()

    def tell() -> None:
        text = f"Spark's master {options.master} has not accepted the application yet"
        while not ended.wait(LOOK_SECONDS):
            waits(f"{text}: {SAME_VERSION}")

    if options.standalone:
        threading.Thread(target=tell, name="master", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _reason(error: Exception) -> str:
    """Return the message of a Java error without its stack, else the last line."""
    lines = scrub(str(error)).strip().splitlines()
    reason = next((line[2:] for line in lines if line.startswith(": ")), lines[-1])
    return reason.rstrip(".")


def session_settings(tasks: int) -> dict[str, str]:
    """Return the settings of a session, which flows rely on. ``tasks`` run at once."""
    return {
        "spark.sql.ansi.enabled": "false",
        # Spark takes each batch for a few bytes, and would broadcast it.
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(NO_LIMIT),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_AT_ONCE),
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * tasks),
        # ${env:NAME} in a flow's text would read the collector's environment.
        "spark.sql.variable.substitute": "false",
    }


@cache
def for_large_rows(session: SparkSession) -> SparkSession:
    """Return a session of the same Spark that takes rows of any size into Python."""
    careful = session.newSession()
    take_large_rows(careful)
    return careful


def take_large_rows(session: SparkSession) -> None:
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", BYTES_AT_ONCE)
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", LARGE_ROWS_AT_ONCE)


def _parallelism(options: SparkOptions, spare_tasks: int) -> dict[str, str]:
    if not options.local or not spare_tasks:
        return {"spark.master": options.master}
    number = options.master.removesuffix("]").partition("[")[2] or 1
    tasks = cores.available() if number == "*" else int(number)
    return {
        "spark.master": f"local[{TASKS_PER_CORE * tasks + spare_tasks}]",
        "spark.default.parallelism": str(tasks),
        PARTITIONS_OF_TABLES: str(TASKS_PER_CORE * tasks),
    }


def garbage_collector(environment: Mapping[str, str]) -> str:
    """Return Java's garbage collector option; empty if the environment sets one: Java takes one."""
    given = " ".join(environment.get(name, "") for name in java.VARIABLES)
    return "" if CHOSEN.search(given) else GARBAGE_COLLECTOR


def _given_settings(options: SparkOptions) -> dict[str, str]:
    given = {
        "spark.cores.max": options.cores,
        "spark.default.parallelism": None if options.local else options.cores,
        "spark.executor.cores": options.executor_cores,
        "spark.executor.memory": options.executor_memory,
        "spark.jars": ",".join(options.jars),
        "spark.jars.packages": ",".join(options.packages),
    }
    settings = {name: str(value) for name, value in given.items() if value}
    for name, value in options.conf.items():
        if not SECRET.fullmatch(value):
            settings[name] = value
    return settings


def _hide(directory: Path, options: SparkOptions) -> None:
    """Write secret settings to a file: the host's users see command lines. Raises UserError."""
    hidden = {
        name: secrets.resolve(value)
        for name, value in options.conf.items()
        if SECRET.fullmatch(value)
    }
    for name in hidden:
        require_redacted(name)
    if any("\n" in secret for secret in hidden.values()):
        raise UserError("spark.conf: a secret has several lines, and Spark reads only one")
    if hidden:
        directory.mkdir(mode=0o700)
        file = directory / "spark-defaults.conf"
        lines = (f"{name} {_escaped(secret)}\n" for name, secret in hidden.items())
        file.touch(mode=0o600)
        file.write_text("".join(lines))
        os.environ["SPARK_CONF_DIR"] = str(directory)


def require_redacted(name: str) -> None:
    """Raise UserError for a setting whose value Spark's pages would show."""
    if not re.search(REDACTED, name):
        raise UserError(f"spark.conf: {name} cannot hold a secret: Spark would show it")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")


def _reach(master: str) -> None:
    """Raise UnavailableError if no standalone master answers: Spark notices after a minute."""
    addresses = list(_addresses(master))
    for host, port in addresses:
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except OSError:
            continue
        return
    if addresses:
        raise UnavailableError(f"Spark's master {master} does not answer")


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    scheme, _, places = master.partition("://")
    if scheme == "spark":
        for address in places.split(","):
            host, _, port = address.rpartition(":")
            yield host.strip("[]"), int(port)


def _sockets(directory: Path) -> dict[str, str]:
    """Return settings for Unix sockets between JVM and Python workers, protected by ``directory``
    alone: over TCP each job waits for 40 ms. Paths have at most 104 bytes: a longer directory is
    named by a descriptor of this process, where Linux allows that; else TCP is used."""
    path = str(directory.absolute())
    if len(os.fsencode(path)) > SOCKET_DIRECTORY_BYTES:
        followed = Path(f"/proc/{os.getpid()}/fd")
        if not followed.is_dir() or followed.stat().st_uid != os.geteuid():
            return {}
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # for as long as we live
        path = str(followed / str(opened))
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": path,
    }


def unit_tasks(spark: SparkSession) -> int:
    """Return the number of tasks of a job of units: the partitions of a table in the driver."""
    default = str(spark.sparkContext.defaultParallelism)
    return int(spark.conf.get(PARTITIONS_OF_TABLES, default) or default)


def ask(spark: SparkSession) -> None:
    """Wait until Spark's JVM answers. Raises Py4JError or OSError when it has ended."""
    _ = spark.sparkContext.startTime  # PySpark remembers the version


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the application has ended, for example by its master."""
    try:
        _ = spark.sparkContext.defaultParallelism
    except Py4JJavaError:
        return True
    return False


def is_starved(spark: SparkSession) -> bool:
    """Return whether stages wait and no task runs, as without executors."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return bool(stages) and not any(stage.numActiveTasks for stage in stages if stage)


def archive(directory: Path) -> Path:
    """Write the code of flumeng and of installed plug-ins, without their dependencies, into a zip
    file named by its digest, for executors on other hosts."""
    content = dict(sorted(_files()))
    digest = hashlib.sha256()
    for name, data in content.items():
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    file = directory / f"flumeng-{digest.hexdigest()[:16]}.zip"
    if not file.exists():
        private_directory.write_private(file, "")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, data in content.items():
                zipped.writestr(zipfile.ZipInfo(name, ZIP_EPOCH), data, zipfile.ZIP_DEFLATED)
    return file


def _files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        yield from _sources(package)
    yield from _metadata("flumeng")
    for name in sorted({entry.distribution for entry in registry.all_entries()} - {registry.OWN}):
        yield from _metadata(name)
        for module in _modules(name):
            yield from _sources(module)


def _metadata(name: str) -> Iterator[tuple[str, bytes]]:
    package = distribution(name)
    folder = f"{name.replace('-', '_')}-{package.version}.dist-info"
    metadata = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    yield f"{folder}/METADATA", metadata.encode()
    if name != registry.OWN and (points := package.read_text("entry_points.txt")):
        yield f"{folder}/entry_points.txt", points.encode()


def _modules(name: str) -> set[str]:
    mine = (entry for entry in registry.all_entries() if entry.distribution == name)
    return {entry.options.partition(":")[0].partition(".")[0] for entry in mine}


def _sources(module: str) -> Iterator[tuple[str, bytes]]:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        yield origin.name, origin.read_bytes()
        return
    for file in origin.parent.rglob("*.py"):
        yield str(Path(module) / file.relative_to(origin.parent)), file.read_bytes()


def _ui_settings(options: SparkOptions) -> dict[str, str]:
    """Return settings of Spark's web interface. It exposes settings and plans, so it is off by
    default, read-only, and on loopback only, for a proxy of the user."""
    if not options.ui:
        return {**RETAINED, "spark.ui.enabled": "false"}
    settings = {
        **RETAINED,
        "spark.ui.enabled": "true",
        "spark.ui.killEnabled": "false",
        "spark.ui.port": str(options.ui_port),
    }
    if options.ui_url is not None:
        url = urlsplit(options.ui_url)
        settings["spark.ui.proxyRedirectUri"] = f"{url.scheme}://{url.netloc}"
        settings["spark.ui.proxyBase"] = url.path.rstrip("/")
    return settings


def ui_address(spark: SparkSession) -> str:
    if (served := spark.sparkContext.uiWebUrl) is None:
        return ""
    proxy = spark.conf.get("spark.ui.proxyRedirectUri", None)
    if proxy is None:
        return f"http://{LOOPBACK}:{urlsplit(served).port}"
    return proxy + (spark.conf.get("spark.ui.proxyBase", None) or "")
