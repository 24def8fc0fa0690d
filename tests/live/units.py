"""The daemons of a host whose pages are followed, under the names of their systemd units.

``systemctl`` of these tests starts and stops them as the real one does. All state is in a folder,
which the test and the command ``systemctl`` share.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.testkit.daemons import is_alive, start_logged
from tests.testkit.waiting import wait_for

TOP = Path(__file__).parents[2]


class Units:
    """Stop them in any case: they outlive the test else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def add(self, unit: str, *command: object, **environment: str) -> None:
        """Define a unit, or define it again for its next start."""
        words = [str(word) for word in command]
        (self._folder / unit).with_suffix(".json").write_text(json.dumps([words, environment]))

    @property
    def names(self) -> list[str]:
        return [file.stem for file in self._folder.glob("*.json")]

    def start(self, unit: str) -> None:
        """Does nothing if it runs."""
        if self.pid(unit):
            return
        command, environment = json.loads((self._folder / f"{unit}.json").read_text())
        process = start_logged(
            self.log(unit), *command, env=os.environ | environment, start_new_session=True
        )
        (self._folder / f"{unit}.pid").write_text(str(process.pid))

    def stop(self, unit: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Returns when it has ended."""
        pid = self.pid(unit)
        if pid:
            os.kill(pid, number)
            wait_for(lambda: not is_alive(pid), lambda: f"{unit} runs: {self.log(unit)}")

    def restart(self, unit: str) -> None:
        self.stop(unit)
        self.start(unit)

    def stop_all(self) -> None:
        for unit in self.names:
            self.stop(unit)

    def pid(self, unit: str) -> int:
        """0 if it does not run."""
        file = self._folder / f"{unit}.pid"
        pid = int(file.read_text()) if file.exists() else 0
        return pid if pid and is_alive(pid) else 0

    def log(self, unit: str) -> Path:
        return self._folder / f"{unit}.log"

    def install(self, folder: Path) -> None:
        """Write the command ``systemctl`` into a directory of PATH."""
        program = folder / "systemctl"
        lines = [f"#!{sys.executable}", "import sys", f"sys.path.insert(0, {str(TOP)!r})"]
        lines += ["from tests.live.units import systemctl"]
        lines += [f"systemctl({str(self._folder)!r}, sys.argv[1:])"]
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)


def systemctl(folder: str, arguments: list[str]) -> None:
    """``start``, ``stop``, ``restart``, ``try-restart`` or ``enable --now`` of units."""
    units = Units(Path(folder))
    verb, *names = [word for word in arguments if word != "--now"]
    unknown = set(names) - set(units.names)
    if unknown:
        raise SystemExit(f"Unit {', '.join(unknown)} not found.")
    for unit in names:
        if verb in ("start", "enable"):
            units.start(unit)
        elif verb == "stop":
            units.stop(unit)
        elif verb == "restart" or (verb == "try-restart" and units.pid(unit)):
            units.restart(unit)
        elif verb != "try-restart":
            raise SystemExit(f"Unknown command verb {verb}.")
