"""A real browser: Debian's chromium with its driver, and axe-core for accessibility.

axe-core comes from npm into the cache of tests when it is needed; it is not part of the project.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

AXE = "axe-core@4.14.1"
WIDE, PHONE = 1280, 400
HEIGHT = 900
MOST_HEIGHT = 5000
SERIOUS = ("serious", "critical")
INSTALL = "apt-get install -y chromium chromium-driver"


@contextmanager
def browser(
    *, width: int = WIDE, scripts: bool = True, dark: bool = False
) -> Iterator[webdriver.Chrome]:
    """Yield a browser window. Fails with the command in INSTALL where there is no browser."""
    driver = shutil.which("chromedriver")
    assert driver is not None, f"no chromedriver here: {INSTALL}"
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{HEIGHT}")
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    if not scripts:
        preferences = {"profile.managed_default_content_settings.javascript": 2}
        options.add_experimental_option("prefs", preferences)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="flumeng-browser-") as profile:
        options.add_argument(f"--user-data-dir={profile}")
        window = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield window
        finally:
            window.quit()


def complaints(window: webdriver.Chrome) -> list[str]:
    """Return what the browser complained about since the last call: refused scripts, errors."""
    entries: list[dict[str, str]] = window.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


def barriers(window: webdriver.Chrome) -> list[str]:
    """Return what axe-core finds serious on the page, a line each."""
    window.execute_script(_axe())
    found: dict[str, Any] = window.execute_async_script(
        "const done = arguments[0]; axe.run(document).then(done, (e) => done({error: String(e)}));"
    )
    assert "error" not in found, found["error"]
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]}"
        for one in found["violations"]
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


def overflows(window: webdriver.Chrome) -> bool:
    """Return whether the page is wider than its window, so that one has to scroll sideways."""
    return bool(
        window.execute_script(
            "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
    )


def picture(window: webdriver.Chrome, file: Path) -> None:
    """Save a screenshot of the whole page."""
    width = window.get_window_size()["width"]
    height = window.execute_script("return document.documentElement.scrollHeight")
    window.set_window_size(width, min(max(HEIGHT, height + 150), MOST_HEIGHT))
    window.save_screenshot(str(file))


@lru_cache(maxsize=1)
def _axe() -> str:
    """Return axe-core's text, from the cache or from npm."""
    cache = Path(os.environ.get("FLUMENG_CACHE") or tempfile.gettempdir()) / f"{AXE}.js"
    if not cache.exists():
        with tempfile.TemporaryDirectory(prefix="flumeng-axe-") as folder:
            packed = subprocess.run(
                ["npm", "pack", "--json", AXE],
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            )
            (name,) = (one["filename"] for one in json.loads(packed.stdout))
            with tarfile.open(Path(folder) / name) as archive:
                member = archive.extractfile("package/axe.min.js")
                assert member is not None
                half = cache.with_suffix(f".{os.getpid()}")
                half.write_bytes(member.read())
                half.rename(cache)
    return cache.read_text()
