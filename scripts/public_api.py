"""Finds uses of Spark's private parts, which Spark Connect does not have.

``python scripts/public_api.py [--check]`` lists them in the Python files of the product by name,
outside of comments and docstrings. ``--check`` reads ``CLEAN`` alone, and exits with 1 if it finds
one there.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]
PRODUCT = ("cli", "flumeng", "packages", "zkschema")
CLEAN = ("flumeng/filters", "flumeng/config")
"""Folders and files without private parts."""
PRIVATE = {
    "_gateway", "_jdf", "_jsc", "_jsparkSession", "_jvm", "_sc", "internalCreateDataFrame",
    "ofRows", "toRdd",
}  # fmt: skip
JAVA_CLASS = "KVStoreScalaSerializer"
CONTEXT = "sparkContext"


def uses(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each private part in a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Attribute(attr=name) if name in PRIVATE or _is_rdd(node):
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), *_]):
                if name in PRIVATE:
                    yield node.lineno, str(name)
            case ast.Constant(value=str(text)) if JAVA_CLASS in text:
                yield node.lineno, JAVA_CLASS


def _is_rdd(node: ast.Attribute) -> bool:
    """Whether a node makes an RDD of the Spark context, or takes one from a DataFrame."""
    of_context = isinstance(node.value, ast.Attribute) and node.value.attr == CONTEXT
    return node.attr == "rdd" or (of_context and ("RDD" in node.attr or node.attr == "parallelize"))


def main() -> None:
    check = "--check" in sys.argv[1:]
    files = [
        file
        for part in (CLEAN if check else PRODUCT)
        for file in ([TOP / part] if part.endswith(".py") else sorted((TOP / part).rglob("*.py")))
    ]
    found = [(file.relative_to(TOP), line, name) for file in files for line, name in uses(file)]
    for file, line, name in found:
        print(f"{file}:{line}: {name} is a private part of Spark")
    if check and found:
        sys.exit(1)


if __name__ == "__main__":
    main()
