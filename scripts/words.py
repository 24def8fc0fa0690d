"""Counts words of the product that make readers guess.

``python scripts/words.py [--check]`` reads all Python files of the product. In docstrings (also the
string below an attribute or a constant) and in messages (every other string with a space in it:
errors, help, log lines, heads of columns) it looks for ``RIDDLES``; names that the code binds
(variables, arguments, functions, classes) it compares with ``VAGUE_NAMES``. ``--check`` prints
those kinds of which more have such a word than ``SHARES_AT_MOST`` allows, and exits with 1 then.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]
PRODUCT = ("cli", "flumeng", "packages", "zkschema")
RIDDLES = re.compile(r"\b(what|whatever|who|whoever|whom|nobody|told|seldom|anew)\b", re.IGNORECASE)
VAGUE_NAMES = {"found", "heard", "known", "look", "one", "place", "said", "tend", "told", "wanted"}
SHARES_AT_MOST = {"docstrings": 0.01, "messages": 0.0, "names": 0.01}


def words() -> Iterator[tuple[str, str, bool]]:
    """Yield the kind of each docstring, message and name, its line, and whether readers guess."""
    for file in (file for top in PRODUCT for file in sorted((TOP / top).rglob("*.py"))):
        tree = ast.parse(file.read_text())
        docstrings = {id(text) for node in ast.walk(tree) for text in _docstrings(node)}
        for node in ast.walk(tree):
            where = f"{file.relative_to(TOP)}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.Constant(value=str(text)) if id(node) in docstrings:
                    yield "docstrings", where, bool(RIDDLES.search(text))
                case ast.Constant(value=str(text)) if " " in text:
                    yield "messages", where, bool(RIDDLES.search(text))
                case (
                    ast.Name(id=name, ctx=ast.Store())
                    | ast.arg(arg=name)
                    | ast.FunctionDef(name=name)
                    | ast.ClassDef(name=name)
                ):
                    yield "names", where, name.strip("_") in VAGUE_NAMES


def _docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        match statement:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                yield text


def main() -> None:
    totals: dict[str, int] = defaultdict(int)
    guessed: dict[str, list[str]] = defaultdict(list)
    for kind, where, guess in words():
        totals[kind] += 1
        if guess:
            guessed[kind].append(where)
    too_many = {k for k, most in SHARES_AT_MOST.items() if len(guessed[k]) > most * totals[k]}
    for kind in sorted(too_many if "--check" in sys.argv[1:] else SHARES_AT_MOST):
        share = len(guessed[kind]) / totals[kind]
        print(*guessed[kind], sep="\n")
        print(f"{len(guessed[kind])} of {totals[kind]:,} {kind}, {share:.1%}")
    sys.exit(bool(too_many))


if __name__ == "__main__":
    main()
