"""The one Spark session of a collector, and all of its settings.

Everything that Spark's driver writes beside results lies in the collector's own directory. The JVM
ends with this process: it reads our pipe and exits at its end, however we die.

On a cluster the driver does no data work: executors get flumeng's code from it, the events from
the journals' servers, and need no address or file of the driver's host but its two ports.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from flumeng.agent.collector import shipping, spark_ui
from flumeng.config.spark import SparkOptions
from flumeng.events.lazy_batch import BYTES_AT_ONCE, ROWS_AT_ONCE
from flumeng.platform import private_directory, secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.java import find_java
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.scrubbing import scrub

ON_THIS_HOST = SparkOptions()
LOOPBACK = "127.0.0.1"
PYTHON = "python3"
CONNECT_SECONDS = 5.0
REDACTED = "(?i)secret|passw(or)?d|token|credential|(access|account|private)[.-]?key"
"""What Spark shows nowhere of its settings."""
DRIVER_MEMORY = "768m"
GARBAGE_COLLECTOR = "-XX:+UseParallelGC"
"""With so little memory it takes a quarter less of the JVM's processor time than G1, for rows that
go through Spark SQL."""
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
CHOSEN = re.compile(r"-XX:\+Use\w+GC\b")
WORKER_ENVIRONMENT = {
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}
"""Filters make and drop arrays of about a MiB all the time. The C library gives each back to the
kernel, which then has to clear it anew; that took a quarter of their processor time and more.
Nothing is imported from the working directory."""
LARGE_ROWS_AT_ONCE = 256
NO_LIMIT = 2**31 - 1
"""Spark looks at the size of a batch after each row, which takes longer than to write the row."""
SOCKET_DIRECTORY_BYTES = 104 - len("/.") - 36 - len(".sock")
"""A socket of Spark's is named after a UUID."""
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
    spare_tasks: int = 0,
) -> SparkSession:
    """Start Spark with its state in ``directory``, which is emptied first. ``host`` is where
    executors elsewhere reach the driver. On this host so many ``spare_tasks`` may run beside one
    for each core.

    Raises UserError when Java is missing or too old, when ``directory`` cannot be written and for
    a secret that is not there, UnavailableError when the master does not answer.
    """
    find_java()
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
    os.environ.update(spark_ui.environment(options))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = sys.executable if options.local else options.python or PYTHON
    java = f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={logging} -XX:-UsePerfData"
    java = f"{java} {garbage_collector(os.environ)}"
    if more_java_options:
        java = f"{java} {more_java_options}"
    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": java,
        "spark.driver.host": LOOPBACK if options.local else host,
        "spark.driver.bindAddress": LOOPBACK if options.local else host,
        "spark.local.dir": str(scratch),
        "spark.redaction.regex": REDACTED,
        "spark.scheduler.mode": "FAIR",
        "spark.sql.ansi.enabled": "false",
        # Spark takes each batch for a few bytes, and would broadcast it.
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(NO_LIMIT),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_AT_ONCE),
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (options.cores or os.cpu_count() or 1)),
        # ${env:NAME} in a text of a flow would be what is in the collector's environment.
        "spark.sql.variable.substitute": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
        **WORKER_ENVIRONMENT,
        **spark_ui.settings(options),
        **_wanted(options),
        **(_sockets(scratch) if options.local else {}),
    }
    try:
        if options.local and spare_tasks:
            cores = local_cores(options, settings)
            settings = {
                "spark.master": f"local[{cores + spare_tasks}]",
                "spark.default.parallelism": str(cores),
                **settings,
            }
        builder = SparkSession.builder.master(options.master).appName("flumeng")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        if not options.local:
            session.sparkContext.addPyFile(str(shipping.archive(directory)))
    except Py4JError as error:
        if (half := SparkContext._active_spark_context) is not None:
            half.stop()  # or every attempt that follows would be given this one
        told = scrub(str(error)).strip().splitlines()
        raise UnavailableError(f"Spark does not start on {options.master}: {told[-1]}") from error
    return session


@cache
def for_large_rows(session: SparkSession) -> SparkSession:
    """A session of the same Spark in which rows of any size go from the JVM into Python."""
    careful = session.newSession()
    careful.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", BYTES_AT_ONCE)
    careful.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", LARGE_ROWS_AT_ONCE)
    return careful


def local_cores(options: SparkOptions, settings: Mapping[str, str]) -> int:
    """As many tasks at once as Spark takes ``local[*]`` for. The JVM knows it best, in a container
    too, and is started for that with all of ``settings``."""
    _, _, said = options.master.removesuffix("]").partition("[")
    if said != "*":
        return int(said or 1)
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll([*settings.items()]))
    assert SparkContext._jvm is not None
    return int(SparkContext._jvm.java.lang.Runtime.getRuntime().availableProcessors())


def garbage_collector(environment: Mapping[str, str]) -> str:
    """The option of Java that chooses ours, unless the environment has chosen: Java takes one."""
    given = " ".join(environment.get(name, "") for name in JAVA_VARIABLES)
    return "" if CHOSEN.search(given) else GARBAGE_COLLECTOR


def _wanted(options: SparkOptions) -> dict[str, str]:
    """What the cluster's settings say, in Spark's words. Raises UserError."""
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
    """Let Spark's launcher read settings that are secrets in a file of ours: what it is told
    otherwise is in its command line, which everybody on the host sees. Raises UserError."""
    hidden = {
        name: secrets.resolve(value)
        for name, value in options.conf.items()
        if SECRET.fullmatch(value)
    }
    for name in hidden:
        if not re.search(REDACTED, name):
            raise UserError(f"{name} in spark.conf is no secret, and Spark would show it")
    if any("\n" in secret for secret in hidden.values()):
        raise UserError("a secret in spark.conf has several lines, which Spark cannot read")
    if hidden:
        directory.mkdir(mode=0o700)
        file = directory / "spark-defaults.conf"
        lines = (f"{name} {_escaped(secret)}\n" for name, secret in hidden.items())
        file.touch(mode=0o600)
        file.write_text("".join(lines))
        os.environ["SPARK_CONF_DIR"] = str(directory)


def _escaped(text: str) -> str:
    """As the value of a property in Java's properties files."""
    return text.replace("\\", "\\\\")


def _reach(master: str) -> None:
    """Raises UnavailableError when none of the addresses of a standalone master answers: Spark
    takes a minute to find out."""
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
        for place in places.split(","):
            host, _, port = place.rpartition(":")
            yield host.strip("[]"), int(port)


def _sockets(directory: Path) -> dict[str, str]:
    """Let Spark's JVM and its Python workers talk over Unix sockets in ``directory``.

    Over TCP each job waits for 40 ms until the kernel lets small messages go. Who may enter
    ``directory`` may connect: Spark asks for no secret there. The path of a Unix socket has
    104 bytes. A longer directory is named by a descriptor of this process, where Linux
    lets our other processes follow that; elsewhere it is TCP.
    """
    place = str(directory.absolute())
    if len(os.fsencode(place)) > SOCKET_DIRECTORY_BYTES:
        followed = Path(f"/proc/{os.getpid()}/fd")
        if not followed.is_dir() or followed.stat().st_uid != os.geteuid():
            return {}
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # for as long as we live
        place = str(followed / str(opened))
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": place,
    }


def wait_for_end(spark: SparkSession) -> None:
    """Return when Spark's JVM has ended, which it never does by itself."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    gateway.proc.wait()


def pid(spark: SparkSession) -> int:
    """Of Spark's JVM."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    return int(gateway.proc.pid)


def ask(spark: SparkSession) -> None:
    """Return when Spark's JVM has answered a question; raises an error of Py4J when it cannot."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.nanoTime()


def is_stopped(spark: SparkSession) -> bool:
    """Whether the application has ended, such as when its master has ended it."""
    context = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def executors(spark: SparkSession) -> int:
    """How many executors there are besides the driver."""
    context = spark.sparkContext._jsc
    assert context is not None
    return len(context.sc().statusTracker().getExecutorInfos()) - 1


def let_go(spark: SparkSession) -> None:
    """Continue Spark's JVM, should it be stopped: it ends by itself when this process has ended."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    gateway.proc.send_signal(signal.SIGCONT)
