"""READMEs of the product's folders as reference pages: the text above ``DEVELOPERS``."""

from __future__ import annotations

import re
from os.path import normpath, relpath
from pathlib import Path

TOP = Path(__file__).parent.parent
REFERENCE = TOP / "docs" / "reference"
CONNECTORS = "connectors"
OWN_PAGES = {
    "config": "flow.md",
    "filters": "filters.md",
    "filters/formats": "formats.md",
    "journal": "journal-format.md",
}
"""The page of each folder of ``flumeng`` with a README, beside connectors."""
DEVELOPERS = "\n## In this folder\n"
"""The heading of the part of a README that is for developers, and on no page."""
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]+)?\)")


def page_of(folder: str) -> str | None:
    """The page of a folder of ``flumeng``, relative to ``docs/reference``; None without one."""
    parent, _, name = folder.rpartition("/")
    return f"{folder}.md" if parent == CONNECTORS and name else OWN_PAGES.get(folder)


def title_and_text(folder: str) -> tuple[str, str]:
    """The title of the page of a folder, and its text with links as they are from the page."""
    page = page_of(folder)
    assert page is not None, f"flumeng/{folder} has no page"
    readme = TOP / "flumeng" / folder / "README.md"
    title, _, text = readme.read_text().partition(DEVELOPERS)[0].partition("\n")
    here = (REFERENCE / page).parent
    parts = FENCE.split(text.strip("\n"))
    parts[::2] = [LINK.sub(lambda link: _on_page(link, readme.parent, here), p) for p in parts[::2]]
    return title.removeprefix("# "), "".join(parts)


def sections(text: str) -> list[tuple[str, str]]:
    """The sections of a text with their headings; the first one, above all headings, has none."""
    head, *rest = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return [("", head.strip("\n"))] + [
        (heading, body.strip("\n")) for heading, body in zip(rest[::2], rest[1::2], strict=True)
    ]


def _on_page(link: re.Match[str], readme: Path, here: Path) -> str:
    """The same link from the folder ``here`` of a page; READMEs with a page become that page."""
    target = Path(normpath(readme / link[1]))
    if target.name == "README.md" and target.is_relative_to(TOP / "flumeng"):
        page = page_of(str(target.parent.relative_to(TOP / "flumeng")))
        target = REFERENCE / page if page else target
    return f"]({relpath(target, here)}{link[2] or ''})"
