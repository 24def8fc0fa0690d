"""Settings of Spark: texts by key in ZooKeeper, of the cluster and, with precedence, of nodes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from flumeng.config import document
from flumeng.config.decode import decode
from flumeng.platform.errors import UserError
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import SECRET, SECRET_NAME
from flumeng.platform.options.problems import SpecError
from flumeng.platform.options.quantities import check_address

LOCAL = re.compile(r"local(\[(\*|[1-9][0-9]{0,3})\])?", re.ASCII)
OWN_CONF = (
    "spark.app.name",
    "spark.master",
    "spark.jars",
    "spark.jars.packages",
    "spark.cores.max",
    "spark.executor.cores",
    "spark.executor.memory",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.pyspark.python",
    "spark.pyspark.driver.python",
    "spark.scheduler.mode",
    "spark.ui.enabled",
    "spark.ui.killEnabled",
    "spark.ui.port",
    "spark.ui.proxyBase",
    "spark.ui.proxyRedirectUri",
)
"""Settings that flumeng itself or other options set."""
OWN_SQL = "spark.sql."
CATALOG = "spark.sql.catalog."
FREE_SQL = (
    "spark.sql.shuffle.",
    "spark.sql.adaptive.",
    "spark.sql.autoBroadcastJoinThreshold",
    CATALOG,
)
"""Allowed SQL settings: of execution and catalogs. Others would change the results of flows."""
CONNECT = "sc://"
ON_THE_SERVER = (
    "cores",
    "executor_cores",
    "executor_memory",
    "python",
    "packages",
    "jars",
    "ui",
    "ui_port",
    "ui_url",
)
"""Options that a Spark Connect server decides for all of its clients."""
_PARAMETER = re.compile(r"([A-Za-z0-9_-]+)=([^;=\s]+)", re.ASCII)
_MEMORY = re.compile("[1-9][0-9]{0,6}[mg]", re.ASCII)
_PACKAGE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)


def check_master(text: str) -> None:
    scheme, _, addresses = text.partition("://")
    if LOCAL.fullmatch(text) or text == "yarn" or (scheme == "k8s" and addresses):
        return
    if scheme == "sc":
        _check_connect(addresses)
        return
    if scheme != "spark":
        raise ValueError(
            'expected local[*], local[4], yarn, "spark://host:7077", "k8s://https://host:443" or '
            '"sc://host:15002"'
        )
    for address in addresses.split(","):
        check_address(address)


def _check_connect(text: str) -> None:
    address, slash, parameters = text.partition("/;")
    expected = (
        'expected "sc://host:port" or "sc://host:port/;name=value", like '
        '"sc://spark.example:15002/;token=${secret:spark}"'
    )
    try:
        check_address(address)
    except ValueError as error:
        raise ValueError(expected) from error
    for given in parameters.split(";") if slash else ():
        match = _PARAMETER.fullmatch(given)
        if match is None or match[1].lower() == "session_id":
            raise ValueError(expected)
        if SECRET_NAME.search(match[1]) and not SECRET.fullmatch(match[2]):
            raise ValueError(
                f"expected a reference to a secret for {match[1]}, like ${{secret:NAME}}"
            )


def check_memory(text: str) -> None:
    if not _MEMORY.fullmatch(text):
        raise ValueError("expected a size as Spark takes it, like 2g or 1536m")


def check_package(text: str) -> None:
    if not _PACKAGE.fullmatch(text):
        raise ValueError('expected Maven coordinates, like "org.postgresql:postgresql:42.7.4"')


def check_jar(text: str) -> None:
    if not (text.startswith("/") or re.match("[a-z0-9]+://", text)) or "," in text:
        raise ValueError("expected an absolute path or a URL")


def check_python(text: str) -> None:
    if not PurePosixPath(text).is_absolute():
        raise ValueError("expected an absolute path, like /opt/data/bin/python3")


def check_ui_url(text: str) -> None:
    if not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~-]+)*/?", text, re.ASCII):
        raise ValueError('expected a URL without a query, like "https://ops.example.org/spark/n1"')


def check_conf(text: str) -> None:
    if not re.fullmatch(r"spark(\.[A-Za-z0-9_-]+)+", text, re.ASCII):
        raise ValueError("expected the name of a setting of Spark, like spark.speculation")
    if text in OWN_CONF or (text.startswith(OWN_SQL) and not text.startswith(FREE_SQL)):
        raise ValueError("flumeng sets this setting itself, or has an option for it")


@dataclass(frozen=True)
class SparkOptions:
    """Where the batches of a node run. After a change the node restarts its collector by itself;
    then the change takes effect."""

    master: str = option(
        doc="Spark's master. `local[*]` is the node's own host with all of its cores; "
        '`"sc://host:15002/;token=${secret:spark}"` is a Spark Connect server.',
        check=check_master,
        example='"spark://spark-1:7077,spark-2:7077"',
        default="local[*]",
    )
    cores: int | None = option(
        doc="The most cores of the cluster that the node takes; without it all free ones. Tasks "
        "go to nodes with cores, unless nodes declare capacities.",
        between=(1, 100_000),
        default=None,
    )
    executor_cores: int | None = option(
        doc="Cores of an executor. Without it the cluster decides: all of a worker (standalone) or "
        "one (YARN and Kubernetes).",
        between=(1, 1000),
        default=None,
    )
    executor_memory: str | None = option(
        doc="Memory of an executor's JVM, in Spark's notation. Python takes about 200 MB a core "
        "beside it.",
        check=check_memory,
        example="2g",
        default=None,
    )
    python: str | None = option(
        doc="The Python of executors on other hosts, with the data libraries; flumeng is sent to "
        "it. Without it `python3`.",
        check=check_python,
        example="/opt/data/bin/python3",
        default=None,
    )
    packages: tuple[str, ...] = option(
        doc="Maven coordinates of packages for the class path, such as JDBC drivers.",
        check=check_package,
        example='["org.postgresql:postgresql:42.7.4"]',
        default=(),
    )
    jars: tuple[str, ...] = option(
        doc="Jars on the class path: paths on the node's host, or URLs.",
        check=check_jar,
        example="[/opt/jdbc/postgresql.jar]",
        default=(),
    )
    ui: bool = option(
        doc="Whether collectors serve Spark's own interface, read-only and on their host's "
        "loopback only. `flow show` and `node show` link to it.",
        default=False,
    )
    ui_port: int = option(
        doc="Its port; the next free one when that is taken. 0 stands for any free port.",
        between=(0, 65535),
        default=0,
    )
    ui_url: str | None = option(
        doc="The URL, with its path, at which your proxy serves it. Set it for each node.",
        check=check_ui_url,
        example="https://ops.example.org/spark/n1",
        default=None,
    )
    conf: Mapping[str, str] = option(
        doc="Further settings of Spark. A value may be a reference to a secret, and has to be one "
        "if the name is that of a secret.",
        check=check_conf,
        example="{spark.speculation: true, spark.driver.port: 7400}",
        factory=dict,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, value in self.conf.items():
            if SECRET_NAME.search(name) and not SECRET.fullmatch(value):
                yield f"conf.{name}", "expected a reference to a secret, like ${secret:NAME}"
        if not self.connect:
            return
        for name in ON_THE_SERVER:
            if getattr(self, name) != KEYS[name].default:
                yield (
                    name,
                    f"the Spark Connect server decides this: set it there. `flumeng cluster set "
                    f"spark.{name} --unset` removes a value from here",
                )
        for name in self.conf:
            if not name.startswith(FREE_SQL):
                yield (
                    f"conf.{name}",
                    "a Spark Connect server takes no such setting from a session: set it there, "
                    "and remove it here",
                )

    @property
    def local(self) -> bool:
        return LOCAL.fullmatch(self.master) is not None

    @property
    def connect(self) -> bool:
        """Whether the master is a Spark Connect server, so that no driver runs here."""
        return self.master.startswith(CONNECT)

    @property
    def place(self) -> str:
        """The master without parameters of its URL."""
        return self.master.partition("/;")[0] if self.connect else self.master

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters of a Spark Connect server's URL; values may be references to secrets."""
        given = self.master.partition("/;")[2]
        return dict(part.split("=") for part in given.split(";") if part)

    @property
    def standalone(self) -> bool:
        return self.master.startswith("spark://")


KEYS = {field.name: field for field in dataclasses.fields(SparkOptions)}


def read(texts: Mapping[str, str]) -> SparkOptions:
    """Parse settings from texts by key. Raises UserError, also for options of a newer flumeng."""
    text = "".join(f"{json.dumps(key)}: {value}\n" for key, value in texts.items())
    try:
        return decode(SparkOptions, document.compose(text or "{}"))
    except SpecError as error:
        lines = (f"spark.{problem.path}: {problem.message}" for problem in error.problems)
        raise UserError("; ".join(lines)) from error


def supported(texts: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings without those of a newer flumeng."""
    return {key: text for key, text in texts.items() if key in KEYS}


def normal(key: str, text: str) -> str:
    """Return a setting's text in the form in which it is stored, on one line. Raises UserError."""
    return _text(getattr(read({key: " ".join(text.split())}), key))


def default(key: str) -> str | None:
    """Return the text of a setting's default; None when it has none."""
    value = getattr(SparkOptions(), key)
    return None if value is None else _text(value)


def effective(cluster: Mapping[str, str], node: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings in force on a node: its own, and those of the cluster that it lacks."""
    return {**cluster, **node}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(dict(value) if isinstance(value, Mapping) else value)
