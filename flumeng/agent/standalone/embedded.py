"""The ZooKeeper server of PySpark's jars, so that nothing is downloaded.

``serve`` turns the calling process into the server, so the caller's parent supervises the JVM;
``python -m flumeng.agent.standalone.embedded DIR PORT`` ends with its parent. With an identity the
port requires a certificate of the cluster's authority; a second, plain port serves migrations.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from flumeng.platform import private_directory, processes, secrets
from flumeng.platform.errors import UserError
from flumeng.platform.java import find_java
from flumeng.platform.processes import die_with_parent
from flumeng.platform.security import roles
from flumeng.platform.security.credentials import keystore_of

if TYPE_CHECKING:
    from flumeng.platform.security.credentials import Keystore

HEAP_MIB = 256
TICK_MILLISECONDS = 500
KEY_STORE, CA = "zookeeper-key.pem", "ca.pem"
JARS = (
    "zookeeper-",
    "slf4j-api",
    "log4j-",
    "netty-",
    "metrics-core",
    "snappy-java",
    "commons-io",
    "commons-cli",
    "jackson-annotations",
    "jackson-core-2",
    "jackson-databind",
)
KEPT = ("tree", "log4j2.properties", "zoo.cfg", KEY_STORE, CA)
LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} zookeeper %-5p %m%n
"""


def serve(
    data: Path, port: int, *, host: str = "127.0.0.1", plain_port: int | None = None
) -> NoReturn:
    """Become a ZooKeeper server on ``host:port`` (port 0: any free one), and print the address.
    Raises UserError for Java, port, ``data``, or an identity without a ZooKeeper certificate."""
    port = port or free_port(host)
    keystore = keystore_of("zookeeper")
    command = server_command(data, port, host=host, keystore=keystore, plain_port=plain_port)
    print(f"zookeeper {host}:{port}", flush=True)
    os.umask(private_directory.OTHERS)
    processes.forbid_core_dumps()
    os.execve(command[0], command, secrets.without(os.environ))


def server_command(
    data: Path,
    port: int,
    *,
    host: str = "127.0.0.1",
    server_id: int = 0,
    ensemble: Sequence[str] = (),
    keystore: Keystore | None = None,
    plain_port: int | None = None,
) -> list[str]:
    """Write a server's configuration below ``data`` and return its command line. ``ensemble``:
    ``host:peer_port:election_port`` of servers 1, 2, ...; empty for a single server. With
    credentials at ``keystore`` all ports but ``plain_port`` are secure."""
    java = find_java()
    proof = keystore.load() if keystore else None
    if plain_port is not None and proof is None:
        raise UserError(f"--plain-port needs {roles.DIRECTORY}: without it no port has TLS")
    for taken in (port, plain_port) if plain_port else (port,):
        require_free(host, taken)
    ports = [f"clientPort={port}", f"clientPortAddress={host}"]
    if proof is not None:
        ports = secure_ports(data, port, host, plain_port)
    private_directory.make_private(data, KEPT)
    try:
        (data / "tree").mkdir(exist_ok=True, mode=private_directory.DIRECTORY_MODE)
        private_directory.write_private(data / "log4j2.properties", LOGGING)
        if proof is not None:
            store = data / KEY_STORE  # ZooKeeper wants key and certificate in one file
            store.touch(mode=0o600)
            store.write_bytes(proof.key + proof.certificate)
            (data / CA).write_bytes(proof.ca)
        private_directory.write_private(data / "zoo.cfg", configuration(data, ports, ensemble))
        if ensemble:
            private_directory.write_private(data / "tree" / "myid", str(server_id))
    except OSError as error:
        raise UserError(f"cannot write to {data}: {error.strerror}") from error
    main = "quorum.QuorumPeerMain" if ensemble else "ZooKeeperServerMain"
    return [
        java,
        f"-Xmx{HEAP_MIB}m",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Dzookeeper.jmx.log4j.disable=true",
        f"-Dlog4j2.configurationFile={data / 'log4j2.properties'}",
        "-cp",
        ":".join(_jars()),
        f"org.apache.zookeeper.server.{main}",
        str(data / "zoo.cfg"),
    ]


def secure_ports(data: Path, port: int, host: str, plain_port: int | None) -> list[str]:
    """Return configuration that requires certificates of the cluster's authority. On a plain port
    clients have the rights that access lists grant to everybody. Host names are not checked."""
    stores = {"keyStore": _escaped(str(data / KEY_STORE)), "trustStore": _escaped(str(data / CA))}
    lines = [
        f"secureClientPort={port}",
        f"secureClientPortAddress={host}",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        "sslQuorum=true",
        "ssl.clientHostnameVerification=false",
    ]
    for ssl in ("ssl", "ssl.quorum"):
        for store, file in stores.items():
            lines += [f"{ssl}.{store}.location={file}", f"{ssl}.{store}.type=PEM"]
        lines += [
            f"{ssl}.clientAuth=need",
            f"{ssl}.protocol=TLSv1.3",
            f"{ssl}.enabledProtocols=TLSv1.3,TLSv1.2",
        ]
    if plain_port is None:
        return [*lines, "enforce.auth.enabled=true", "enforce.auth.schemes=x509"]
    return [*lines, f"clientPort={plain_port}", f"clientPortAddress={host}"]


def configuration(data: Path, ports: Sequence[str], ensemble: Sequence[str]) -> str:
    lines = [
        f"dataDir={_escaped(str(data / 'tree'))}",
        *ports,
        f"tickTime={TICK_MILLISECONDS}",
        "initLimit=20",
        "syncLimit=10",
        "minSessionTimeout=1000",
        "maxSessionTimeout=60000",
        "maxClientCnxns=0",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr",
        "autopurge.purgeInterval=1",
        "autopurge.snapRetainCount=3",
        *(f"server.{number}={address}" for number, address in enumerate(ensemble, start=1)),
    ]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    """Escape backslashes and non-ASCII characters as UTF-16 units, for Java's properties files."""
    units = value.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[n : n + 2]) for n in range(0, len(units), 2))
    return "".join(
        chr(code) if code < 128 and chr(code) != "\\" else f"\\u{code:04x}" for code in codes
    )


def _jars() -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UserError("pyspark, whose jars hold ZooKeeper, is missing: pip install it")
    folder = Path(spec.origin).parent / "jars"
    return sorted(str(jar) for jar in folder.glob("*.jar") if jar.name.startswith(JARS))


def require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port below the ephemeral range, so that it stays free during a restart."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port


if __name__ == "__main__":
    die_with_parent()
    try:
        plain_port = int(sys.argv[3]) if len(sys.argv) > 3 else None
        serve(Path(sys.argv[1]), int(sys.argv[2]), plain_port=plain_port)
    except UserError as problem:
        raise SystemExit(str(problem)) from problem
