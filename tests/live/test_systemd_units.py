"""The units in ``conf/systemd``, run by a real systemd: their permissions are enough, and no more.

A systemd of the test's own is the first process of its own namespaces, with its own ``/etc``,
``/run``, ``/opt`` and ``/var/lib`` and a network of nothing but loopback; the host's sysctls and
devices are out of its reach. It runs the host's Python and Java, and this tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests import reaper
from tests.testkit.waiting import wait_for

TOP = Path(__file__).parents[2]
UNITS = TOP / "conf" / "systemd"
CGROUPS = Path("/sys/fs/cgroup")
DATA = "/var/lib/flumeng"
LAKE = "/srv/lake"
EVENTS = 500

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("systemctl") is None, reason="needs root and systemd"
)

BOOT = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -t sysfs -o ro sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /opt
mkdir -p /run/etc/upper /run/etc/work /opt/python /opt/flumeng/bin /opt/flumeng/source
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
mount -t tmpfs tmpfs /usr/lib/systemd/system
mount -t tmpfs tmpfs /etc/systemd/system
mount --bind "$BASE" /opt/python
mount --bind "$TOP" /opt/flumeng/source
mkdir -p /opt/flumeng/lib/"$PYTHON"/site-packages
mount --bind "$PACKAGES" /opt/flumeng/lib/"$PYTHON"/site-packages
ln -s /opt/python/bin/"$PYTHON" /opt/flumeng/bin/python
printf 'home = /opt/python/bin\\n' >/opt/flumeng/pyvenv.cfg
printf '#!/opt/flumeng/bin/python\\nfrom cli.main import main\\nmain()\\n' >/opt/flumeng/bin/flumeng
chmod 755 /opt/flumeng/bin/flumeng
echo host1 >/etc/hostname
printf 'passwd: files\\ngroup: files\\nhosts: files\\n' >/etc/nsswitch.conf
printf '127.0.0.1 localhost host1\\n' >/etc/hosts
ip link set lo up
cp -r "$MADE"/. /etc/systemd/system/
cp "$TOP"/conf/systemd/*.service /etc/systemd/system/
systemd-sysusers "$TOP"/conf/systemd/flumeng.sysusers
mkdir /run/logs
mount -t tmpfs tmpfs /srv
install -d -o flumeng -g adm -m 2750 /srv/lake
export container=test
exec "$SYSTEMD" --system --unit=test.target --log-target=console --show-status=no
"""
TARGETS = ("sysinit", "basic", "shutdown", "network-online", "multi-user", "test")
HERE = """
[Service]
Environment=FLUMENG_ZK=127.0.0.1:2181/flumeng PYTHONPATH=/opt/flumeng/source
Environment=LD_LIBRARY_PATH=/opt/python/lib
Environment="JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UseContainerSupport"
StandardOutput=append:/run/logs/%p
StandardError=append:/run/logs/%p
"""
ZOOKEEPER = """
[Service]
ExecStart=/opt/flumeng/bin/flumeng zookeeper --data /var/lib/zookeeper --port 2181
"""
WATCHDOG = "15s"
WATCHED = f"""
[Service]
WatchdogSec={WATCHDOG}
"""
LOW_PORT = """
[Service]
CapabilityBoundingSet=CAP_NET_BIND_SERVICE
AmbientCapabilities=CAP_NET_BIND_SERVICE
"""
PROBED = """
Type=oneshot
WatchdogSec=0
Restart=no
ExecStart=
ExecStart=/opt/flumeng/bin/python /etc/systemd/system/probe.py
"""
LAKE_BESIDE = f"""
[Service]
SupplementaryGroups=adm
ReadWritePaths={LAKE}
UMask=0027
"""
FLOW = f"""
flow: web
sources: [syslog: {{listen: "127.0.0.1:5514", protocol: tcp}}]
delivery: exactly-once
filters: [parse: {{format: syslog}}]
sinks: [files: {{path: "{LAKE}/dt=%Y-%m-%d", format: parquet}}]
batch: {{seconds: 1 s}}
"""
CONNECT = """
import socket, time
for _ in range(150):
    try:
        socket.create_connection(("127.0.0.1", 2181)).close()
        break
    except OSError:
        time.sleep(0.2)
"""
SEND = f"""
import socket
with socket.create_connection(("127.0.0.1", 5514)) as s:
    s.sendall(b"".join(b"<13>Nov 26 12:00:00 h app: event %d\\n" % n for n in range({EVENTS})))
"""


LIBC = "import ctypes, os, socket; libc = ctypes.CDLL(None, use_errno=True); "
SYSCALL = "n = libc.syscall({}); assert n != -1, os.strerror(ctypes.get_errno())"
ATTEMPTS = {
    "write to /etc": "open('/etc/own', 'w')",
    "write to /usr": "open('/usr/own', 'w')",
    "write to the code": "open('/opt/flumeng/bin/flumeng', 'a')",
    "look into /root": "os.listdir('/root')",
    "look into /home": "os.listdir('/home')",
    "write to /proc/sys": "open('/proc/sys/kernel/core_pattern', 'w')",
    "move to another cgroup": "open('/sys/fs/cgroup/cgroup.procs', 'w').write('0')",
    "open a disk": "open('/dev/vda', 'rb')",
    "become root": "os.setuid(0)",
    "mount": SYSCALL.format("165, b'tmpfs', b'/tmp', b'tmpfs', 0, 0"),
    "unshare": SYSCALL.format("272, 0x10000000"),
    "trace its parent": SYSCALL.format("101, 16, os.getppid(), 0, 0"),
    "use bpf": SYSCALL.format("321, 5, 0, 0"),
    "use io_uring": SYSCALL.format("425, 8, ctypes.create_string_buffer(120)"),
    "use a keyring": SYSCALL.format("248, b'user', b'a', b'b', 1, -2"),
    "lock memory": SYSCALL.format("151, 1"),
    "raise its limits": SYSCALL.format("160, 4, (ctypes.c_ulong * 2)(1 << 30, 1 << 30)"),
    "set the clock": SYSCALL.format("227, 0, (ctypes.c_long * 2)(1, 1)"),
    "load a module": SYSCALL.format("175, 0, 0, b''"),
    "change its personality": SYSCALL.format("135, 0x0040000"),
    "be 32 bits": SYSCALL.format("135, 8"),
    "make a setuid file": "open('/tmp/a', 'w'); os.chmod('/tmp/a', 0o4755)",
    "read packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "speak netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "listen on a port below 1024": "socket.socket().bind(('127.0.0.1', 514))",
}
"""Attacks of code that runs in a unit; each in a process of its own."""
WRITABLE_CODE = SYSCALL.format("9, 0, 4096, 7, 0x22, -1, 0")
PROBE = """
import subprocess, sys
attempts = {attempts!r}
for name, code in attempts.items():
    tried = subprocess.run([sys.executable, "-c", {libc!r} + code], stderr=subprocess.PIPE)
    words = (tried.stderr.decode().strip().splitlines() or ["?"])[-1]
    became = "refused" if tried.returncode == 1 else f"done: {{tried.returncode}}"
    print(became, name, words, sep="\\t")
"""
REFUSALS = ("not permitted", "denied", "Read-only", "Address family", "No such file")


@dataclass(frozen=True)
class Host:
    """A running systemd, inspected from outside its namespaces."""

    pid: int

    def run(self, *command: str, check: bool = True) -> str:
        spaces = ["nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-n", "-C"]
        done = subprocess.run(
            [*spaces, *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": "/opt/flumeng/source"},
            cwd="/",
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout + done.stderr

    def flumeng(self, *words: str, check: bool = True) -> str:
        zk = "FLUMENG_ZK=127.0.0.1:2181/flumeng"
        return self.run("env", zk, "/opt/flumeng/bin/flumeng", *words, check=check)

    def path(self, name: str) -> Path:
        return Path(f"/proc/{self.pid}/root{name}")

    def shown(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", f"--property={name}", "--value", unit).strip()

    def processes(self, unit: str) -> dict[str, dict[str, str]]:
        """The command line of each of its processes, and the fields of its ``status``."""
        group = self.path(f"/sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs")
        return {
            Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "): dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if ":\t" in line
            )
            | {"cores": Path(f"/proc/{pid}/limits").read_text().split("core file size")[1][:20]}
            for pid in group.read_text().split()
        }


def units(made: Path) -> None:
    """Stand-ins for a distribution's own units and for the paths of this host."""
    for name in TARGETS:
        (made / f"{name}.target").write_text("[Unit]\nAllowIsolate=yes\nDefaultDependencies=no\n")
    (made / "flumeng-zookeeper.service").write_text(ZOOKEEPER)
    for unit in ("flumeng-zookeeper", "flumeng-master", "flumeng-node"):
        (made / f"{unit}.service.d").mkdir()
        (made / f"{unit}.service.d" / "here.conf").write_text(HERE)
    (made / "flumeng-master.service.d" / "watched.conf").write_text(WATCHED)
    (made / "flumeng-node.service.d" / "lake.conf").write_text(LAKE_BESIDE)
    for unit in ("master", "node"):
        (made / f"probe-{unit}.service").write_text((UNITS / f"flumeng-{unit}.service").read_text())
        (made / f"probe-{unit}.service.d").mkdir()
        (made / f"probe-{unit}.service.d" / "here.conf").write_text(HERE + PROBED)
    (made / "probe-node.service.d" / "port.conf.not-yet").write_text(LOW_PORT)
    probe = PROBE.format(attempts=ATTEMPTS | {"write and run code": WRITABLE_CODE}, libc=LIBC)
    (made / "probe.py").write_text(probe)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = tmp_path_factory.mktemp("units")
    units(made)
    log = made / "log"
    mounted = tmp_path_factory.mktemp("cgroup")
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", mounted], check=True)
    group = mounted / f"flumeng-test-{os.getpid()}"
    group.mkdir()
    with log.open("w") as output:
        booted = subprocess.Popen(
            ["sh", "-c", f"echo $$ >{group}/cgroup.procs && exec unshare --pid --mount --uts --ipc "
             '--net --cgroup --fork --kill-child sh -c "$BOOT"'],
            env={
                **{name: os.environ[name] for name in ("PATH", reaper.VARIABLE)},
                "BOOT": BOOT,
                "TOP": str(TOP),
                "MADE": str(made),
                "BASE": sys.base_prefix,
                "PYTHON": f"python{sys.version_info.major}.{sys.version_info.minor}",
                "PACKAGES": sysconfig.get_path("purelib"),
                "SYSTEMD": "/lib/systemd/systemd",
            },
            stdout=output,
            stderr=output,
        )  # fmt: skip
    host = None
    try:
        children = Path(f"/proc/{booted.pid}/task/{booted.pid}/children")
        wait_for(lambda: children.read_text().strip(), "no first process", seconds=10)
        host = Host(int(children.read_text()))
        wait_for(lambda: host.path("/run/systemd/private").exists(), log.read_text(), seconds=20)
        yield host
    finally:
        for file in host.path("/run/logs").iterdir() if host else ():
            print(file.name, file.read_text())
        booted.kill()
        booted.wait()
        wait_for(lambda: not _populated(group), "processes are left", seconds=20)
        for path in sorted(group.rglob("*/"), reverse=True):
            path.rmdir()
        group.rmdir()
        subprocess.run(["umount", mounted], check=True)


def _populated(group: Path) -> bool:
    return "populated 1" in (group / "cgroup.events").read_text()


def attempts(host: Host, unit: str) -> dict[str, tuple[str, str]]:
    """Attempt -> its outcome and the last words of its process."""
    host.run("systemctl", "start", f"probe-{unit}")
    lines = host.path(f"/run/logs/probe-{unit}").read_text().splitlines()
    return {name: (became, words) for became, name, words in (line.split("\t") for line in lines)}


@pytest.mark.parametrize("unit", ["master", "node"])
def test_code_in_a_unit_cannot_escape_its_sandbox(host: Host, unit: str) -> None:
    tried = attempts(host, unit)
    assert [name for name in ATTEMPTS if tried[name][0] != "refused"] == []
    assert [tried[name] for name in ATTEMPTS if not said_no(tried[name][1])] == []
    compiled = "refused" if unit == "master" else "done: 0"
    assert tried["write and run code"][0] == compiled, "a JVM has to"


def test_port_below_1024_needs_the_documented_drop_in(host: Host) -> None:
    assert is_shown(LOW_PORT)
    drop_ins = host.path("/etc/systemd/system/probe-node.service.d")
    (drop_ins / "port.conf.not-yet").rename(drop_ins / "port.conf")
    host.path("/run/logs/probe-node").unlink(missing_ok=True)
    host.run("systemctl", "daemon-reload")
    tried = attempts(host, "node")
    done = [name for name in ATTEMPTS if tried[name][0] != "refused"]
    assert done == ["listen on a port below 1024"]


def is_shown(drop_in: str) -> bool:
    text = (TOP / "docs" / "how-to" / "install-on-hosts.md").read_text()
    return f"```ini\n{drop_in.strip()}\n```" in text


def said_no(words: str) -> bool:
    return any(refusal in words for refusal in REFUSALS)


@pytest.mark.parametrize(("unit", "most"), [("master", 1.3), ("node", 1.6)])
def test_units_are_valid_and_have_a_low_exposure_score(host: Host, unit: str, most: float) -> None:
    file = f"/etc/systemd/system/flumeng-{unit}.service"
    assert host.run("systemd-analyze", "verify", file).strip() == ""
    score = ["systemd-analyze", "security", "--offline=true", f"--threshold={round(most * 10)}"]
    host.run(*score, "--no-pager", file)


@pytest.mark.long
def test_flow_is_collected_in_the_units(host: Host) -> None:
    host.run("systemctl", "start", "flumeng-zookeeper")
    host.run("/opt/flumeng/bin/python", "-c", CONNECT)
    host.flumeng("schema", "init")
    host.run("systemctl", "enable", "--now", "flumeng-master", "flumeng-node")
    host.path("/run/web.yaml").write_text(FLOW)
    host.flumeng("flow", "apply", "/run/web.yaml")
    wait_for(
        lambda: "2/2" in host.flumeng("status", check=False), "the flow does not run", seconds=200
    )
    host.run("/opt/flumeng/bin/python", "-c", SEND)
    wait_for(lambda: collected(host) >= EVENTS, "events are missing in the lake", seconds=90)
    assert collected(host) == EVENTS
    confined(host)
    private(host)
    restarted(host)
    noticed(host)


def collected(host: Host) -> int:
    files = [str(file) for file in host.path(LAKE).glob("dt=*/*.parquet")]
    return int(ds.dataset(files).count_rows()) if files else 0


def confined(host: Host) -> None:
    """Each process of the units, also Spark's JVM and its Python workers."""
    user = host.run("id", "-u", "flumeng").strip()
    node, master = host.processes("flumeng-node"), host.processes("flumeng-master")
    for kind in (
        "node run",
        "flumeng.agent.ingest",
        "flumeng.agent.collector",
        "java",
        "pyspark.daemon",
    ):
        assert any(kind in command for command in node), kind
    for command, status in (node | master).items():
        assert status["Uid"].split() == [user] * 4, command
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1"), command
        assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0, command
        assert status["cores"].split()[0] == "0", command


def private(host: Host) -> None:
    """Other users cannot read a node's data; the lake's group can, as the drop-in configures."""
    assert host.path(DATA).stat().st_mode & 0o777 == 0o700
    assert is_shown(LAKE_BESIDE)
    assert {file.stat().st_mode & 0o777 for file in host.path(LAKE).glob("dt=*/*")} == {0o640}
    kept = list(host.path(DATA).rglob("*"))
    assert len(kept) > 10
    open_to_all = [path for path in kept if not path.is_symlink() and path.lstat().st_mode & 0o7]
    assert open_to_all == []


def restarted(host: Host) -> None:
    """A killed process is restarted; a stopped unit ends with all its processes."""
    before = host.shown("flumeng-master", "MainPID")
    host.run("kill", "-KILL", before)
    wait_for(
        lambda: host.shown("flumeng-master", "MainPID") not in ("0", before),
        "not restarted",
        seconds=20,
    )
    assert host.shown("flumeng-node", "Type") == "notify"
    host.run("systemctl", "stop", "flumeng-node")
    assert host.shown("flumeng-node", "Result") == "success"
    assert host.shown("flumeng-node", "ActiveState") == "inactive"


def noticed(host: Host) -> None:
    """A master without turns is restarted, even when its own watchdog cannot run."""
    wait_for(
        lambda: host.shown("flumeng-master", "ActiveState") == "active", "not ready", seconds=60
    )
    before = host.shown("flumeng-master", "MainPID")
    assert host.shown("flumeng-master", "WatchdogUSec") == WATCHDOG
    host.run("kill", "-STOP", before)
    wait_for(
        lambda: host.shown("flumeng-master", "MainPID") not in ("0", before),
        "not noticed",
        seconds=60,
    )
    wait_for(
        lambda: host.shown("flumeng-master", "ActiveState") == "active",
        "not ready again",
        seconds=30,
    )
