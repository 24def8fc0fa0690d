"""Installed packages are listed, and known vulnerabilities are reported by name."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distributions, version
from pathlib import Path

import pyspark
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


class Service(BaseHTTPRequestHandler):
    """Answers as OSV does: one vulnerability for click, none for others."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = asked["package"]["name"]
        affected = {
            "package": {"name": "click", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}],
        }
        found = {"id": "OSV-2026-1", "aliases": ["CVE-2026-1"], "summary": "s", "details": "d",
                 "affected": [affected]}  # fmt: skip
        answer = json.dumps({"vulns": [found]} if name == "click" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


def audit(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPTS / "audit.py"), "--vulnerability-service", "osv"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_known_vulnerability_fails_with_its_name(service: str, tmp_path: Path) -> None:
    asked = tmp_path / "asked.txt"
    asked.write_text(f"click=={version('click')}\n")
    only = ["-r", str(asked), "--no-deps", "--disable-pip"]
    said = f"click {version('click')}: CVE-2026-1 OSV-2026-1; mended in 99.0\n"
    assert audit("--osv-url", service, *only) == (1, f"known vulnerability: {said}")


def test_unreachable_vulnerability_service_fails_nothing() -> None:
    code, said = audit("--osv-url", "http://127.0.0.1:9/v1/query")
    assert code == 0
    assert said.strip().endswith("not looked for, the service that knows them is not reached")


def test_accepted_vulnerability_needs_a_reason(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPTS / "audit.py"))
    config = tmp_path / "setup.cfg"
    config.write_text("[flumeng:audit]\naccepted =\n    CVE-2026-1 not called by us\n")
    accepted = script["accepted"](config)
    found = {"id": "OSV-2026-1", "aliases": ["CVE-2026-1"], "fix_versions": []}
    packages = [{"name": "click", "version": "1", "vulns": [found]}]
    assert list(script["problems"](packages, accepted)) == []
    assert len(list(script["problems"](packages, {}))) == 1
    config.write_text("[flumeng:audit]\naccepted =\n    CVE-2026-1\n")
    with pytest.raises(ValueError, match="without a reason"):
        script["accepted"](config)


@pytest.mark.long
def test_the_bill_of_materials_has_each_package_and_each_jar() -> None:
    command = [sys.executable, str(SCRIPTS / "sbom.py"), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    components = json.loads(done.stdout)["components"]
    packages = {(part["name"], part["version"]) for part in components if "hashes" not in part}
    assert {(one.name, one.version) for one in distributions()} <= packages
    jars = list((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    listed = [part["purl"] for part in components if "hashes" in part]
    assert len(listed) == len(jars) > 100
    assert all(purl.startswith("pkg:maven/") for purl in listed)
    assert any(purl.startswith("pkg:maven/org.apache.zookeeper/zookeeper@") for purl in listed)
