"""What databases write differently of the little SQL that is asked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """``text`` has a number or a time as a text with all its digits, which compares with the column
    again. ``clock`` is the database's time, with its zone or in UTC."""

    text: str
    clock: str
    quote: str = "'"
    backslash: str = "\\"
    """How a text constant begins, and what a backslash in one is written as."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of its driver: texts of times are in UTC."""

    def text_of(self, column: str) -> str:
        return self.text.format(column)

    def constant(self, value: str | int) -> str:
        if isinstance(value, int):
            return str(value)
        escaped = value.replace("\\", self.backslash).replace("'", "''")
        return f"{self.quote}{escaped}'"


_MYSQL = Dialect(
    "CAST({} AS CHAR(64))",
    "UTC_TIMESTAMP(6)",
    backslash="\\\\",
    properties={"connectionTimeZone": "UTC", "forceConnectionTimeZoneToSession": "true"},
)
DIALECTS: Mapping[str, Dialect] = {
    "postgresql": Dialect("CAST({} AS VARCHAR(64))", "CURRENT_TIMESTAMP"),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlserver": Dialect("CONVERT(VARCHAR(64), {}, 121)", "SYSUTCDATETIME()", quote="N'"),
    "db2": Dialect("VARCHAR({})", "(CURRENT TIMESTAMP - CURRENT TIMEZONE)"),
}
