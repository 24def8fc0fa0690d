"""A disk whose power can be cut: an ext4 on a file, mounted through a loop device."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path

from tests.testkit.waiting import wait_for


class PowerCut:
    """A disk image with a power switch: a cut discards all data that the disk has not stored
    yet."""

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
        """Cut the power and mount the disk again. No file may be open there, except in processes
        that were just killed."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, self.SHUTDOWN, struct.pack("I", mode))
        finally:
            os.close(fd)
        unmount = ["umount", str(self.place)]
        wait_for(
            lambda: subprocess.run(unmount, check=False, capture_output=True).returncode == 0,
            f"something is open in {self.place}",
        )
        self._mount()

    def stop(self) -> None:
        subprocess.run(["umount", "--lazy", self.place], check=True)
