"""Counts docstrings of the product with a word that makes readers guess.

``python scripts/words.py [--check]``: a docstring is also the string below an attribute or a
constant. ``--check`` prints nothing but what is wrong, and exits with 1 when more than
``SHARE_AT_MOST`` of them have one of ``WORDS``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]
WORDS = re.compile(r"\b(what|whatever|who|whoever|whom|nobody|told|seldom|anew)\b", re.IGNORECASE)
SHARE_AT_MOST = 0.01


def docstrings() -> Iterator[tuple[str, str]]:
    """Where each begins, as ``FILE:LINE``, and its text."""
    for top in ("cli", "flumeng", "zkschema"):
        for file in sorted((TOP / top).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                body = getattr(node, "body", None)
                for statement in body if isinstance(body, list) else ():
                    match statement:
                        case ast.Expr(value=ast.Constant(value=str() as text)):
                            yield f"{file.relative_to(TOP)}:{statement.lineno}", text


def main() -> None:
    found = list(docstrings())
    guessed = [place for place, text in found if WORDS.search(text)]
    too_many = len(guessed) > SHARE_AT_MOST * len(found)
    if too_many or "--check" not in sys.argv[1:]:
        print(*guessed, sep="\n")
        share = len(guessed) / len(found)
        print(f"{len(guessed)} of {len(found):,} docstrings, {share:.1%}: {WORDS.pattern}")
    sys.exit(too_many)


if __name__ == "__main__":
    main()
