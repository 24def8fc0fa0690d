"""Hook of the docs' site (mkdocs.yml): a search finds how-to pages first."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    if page.file.src_uri.startswith("how-to/"):
        page.meta.setdefault("search", {"boost": 3})
    return markdown
