"""A disk whose power can be cut: an ext4 on a file, mounted through a loop device."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path

CLOSE_SECONDS = 30.0


class PowerCut:
    """With a switch that takes away what the disk has not put on that file."""

    SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
    FLUSH_ALL, FLUSH_LOG, FLUSH_NOTHING = range(3)

    def __init__(self, folder: Path, *, megabytes: int = 32) -> None:
        """Raises OSError and CalledProcessError without root, loop devices or mkfs.ext4."""
        folder.mkdir(exist_ok=True)
        image = folder / "disk"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        self._image = image
        self.place = folder / "mount"
        self.place.mkdir()
        self._mount()

    def _mount(self) -> None:
        mount = ["mount", "-o", "loop", str(self._image), str(self.place)]
        subprocess.run(mount, check=True, capture_output=True)

    def strike(self, mode: int) -> None:
        """Cut the power and start the machine again. Nothing may be open there, but for what was
        killed just now."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, self.SHUTDOWN, struct.pack("I", mode))
        finally:
            os.close(fd)
        deadline = time.monotonic() + CLOSE_SECONDS
        while subprocess.run(["umount", self.place], check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline, f"something is open in {self.place}"
            time.sleep(0.1)
        self._mount()

    def stop(self) -> None:
        subprocess.run(["umount", "--lazy", self.place], check=True)
