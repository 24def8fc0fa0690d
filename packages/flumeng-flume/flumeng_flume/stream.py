"""The filters that events pass, and the columns for Flume's headers.

Flume's events have headers; flumeng's have columns. A stream knows the expression in SQL that gives
each header, and makes it a column when something needs it.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any

from flumeng.config.column_kinds import EVENT, MESSAGE
from flumeng_flume.drafts import refused

ANY = "*"
"""A key of ``headers``, for the column with a JSON object of all other headers."""
BODY = "CAST(body AS STRING)"


def quoted(text: str) -> str:
    """Return a text as a literal in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


@dataclass
class Stream:
    """Filters in their order; ``columns`` are those after the last filter.

    The first ``shared`` filters are those of the whole flow, when this is the stream of a branch.
    ``headers`` has the expression of each known header of Flume.
    """

    kafka: bool = False
    filters: list[Any] = field(default_factory=list)
    columns: list[str] = field(default_factory=lambda: [*EVENT])
    headers: dict[str, str] = field(default_factory=dict)
    shared: int = 0

    def __post_init__(self) -> None:
        if self.kafka and self.columns == [*EVENT]:
            self.columns += MESSAGE

    def copied(self) -> Stream:
        return copy.deepcopy(self)

    def branched(self) -> Stream:
        """Return the stream of a branch that begins after these filters."""
        branch = self.copied()
        branch.shared = len(self.filters)
        return branch

    @property
    def own(self) -> list[Any]:
        """The filters of the branch alone, without the shared ones."""
        return self.filters[self.shared :]

    @property
    def key(self) -> str:
        """A key that is equal for streams with the same filters and headers."""
        return repr((self.kafka, self.filters, sorted(self.headers.items())))

    def parse(self, columns: tuple[str, ...], **options: Any) -> None:
        """Add a filter parse. Like the methods below, raises ValueError if flumeng refuses it."""
        self._try([*self.filters, {"parse": options}])
        self.columns += columns

    def where(self, condition: str) -> None:
        self._try([*self.filters, {"where": condition}])

    def add(self, name_hint: str, expression: str) -> str:
        """Add a column; return its name, which may differ from ``name_hint``."""
        name = self._free(name_hint)
        last = self.own[-1] if self.own else None
        added = f"{expression} AS {name}"
        if isinstance(last, dict) and last.get("select", ["?"])[0] == "*":
            joined = [*self.filters[:-1], {"select": [*last["select"], added]}]
            if refused(joined, kafka=self.kafka) is None:
                self.filters = joined
                self.columns.append(name)
                return name
        self._try([*self.filters, {"select": ["*", added]}])
        self.columns.append(name)
        return name

    def set(self, name_hint: str, text: str) -> str:
        """Add a column that is the same text in each event; return its name."""
        name = self._free(name_hint)
        constant = text.replace("{", "{{").replace("}", "}}")
        last = self.own[-1] if self.own else None
        if isinstance(last, dict) and "set" in last and "when" not in last:
            self._try([*self.filters[:-1], {"set": {**last["set"], name: constant}}])
        else:
            self._try([*self.filters, {"set": {name: constant}}])
        self.columns.append(name)
        return name

    def take(self, column: str, other: str) -> None:
        """Give a column the text of another one, where that is not null."""
        filled = {"set": {column: f"{{{other}}}"}, "when": f"{other} IS NOT NULL"}
        self._try([*self.filters, filled])

    def time(self, column: str, pattern: str) -> None:
        """Set ``ts`` from a column, by a pattern of ``strptime``."""
        self._try([*self.filters, {"time": {"column": column, "formats": [pattern]}}])

    def replace(self, column: str, expression: str) -> None:
        """Give a column another value; all others stay."""
        chosen = [f"{expression} AS {column}" if name == column else name for name in self.columns]
        self._try([*self.filters, {"select": chosen}])

    def remove(self, column: str) -> None:
        """Drop a column."""
        self._try([*self.filters, {"drop": [column]}])
        self.columns.remove(column)

    def header(self, name: str) -> str | None:
        """Return the column with one of Flume's headers, added when missing; None when no event has
        such a header."""
        expression = self.headers.get(name)
        if expression is None and ANY in self.headers:
            path = f"$.{name}" if re.fullmatch(r"\w+", name) else f"$['{name}']"
            expression = f"get_json_object({self.headers[ANY]}, {quoted(path)})"
        if expression is None:
            return None
        if expression in self.columns:
            return expression
        column = self.add(name, expression)
        self.headers[name] = column
        return column

    def _free(self, name_hint: str) -> str:
        name = re.sub("[^A-Za-z0-9_]+", "_", name_hint).strip("_") or "value"
        name = f"h_{name}" if name[0].isdigit() else name
        taken = {column.lower() for column in (*self.columns, *EVENT, *MESSAGE)}
        name = f"{name}_header" if name.lower() in taken else name
        free, number = name, 2
        while free.lower() in taken:
            free, number = f"{name}_{number}", number + 1
        return free

    def _try(self, filters: list[Any]) -> None:
        if (why := refused(filters, kafka=self.kafka)) is not None:
            raise ValueError(why)
        self.filters = filters
