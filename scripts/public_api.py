"""Fails where the product uses private parts of Spark, or parts that Spark Connect does not have.

Names count in code alone, not in comments and docstrings.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]
PRODUCT = ("cli", "flumeng", "packages", "zkschema")
PRIVATE = {
    "_active_spark_context", "_ensure_initialized", "_gateway", "_instantiatedSession", "_jconf",
    "_jdf", "_jsc", "_jsparkSession", "_jvm", "_sc", "emptyRDD", "internalCreateDataFrame",
    "ofRows", "parallelize", "rdd", "toRdd",
}  # fmt: skip
PACKAGES = ("org.apache.spark.status", "org.apache.spark.sql.classic")
"""Packages of Spark whose classes are its own."""


def uses(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each such part in a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Attribute(attr=name) if name in PRIVATE:
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), *_]):
                if name in PRIVATE:
                    yield node.lineno, str(name)
            case ast.Constant(value=str(text)) if text.startswith(PACKAGES):
                yield node.lineno, text


def main() -> None:
    files = sorted(file for part in PRODUCT for file in (TOP / part).rglob("*.py"))
    found = [(file.relative_to(TOP), line, name) for file in files for line, name in uses(file)]
    for file, line, name in found:
        print(f"{file}:{line}: {name} is no public part of Spark")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
