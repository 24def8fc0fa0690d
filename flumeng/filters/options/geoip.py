"""The options of the filter ``geoip``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from flumeng.config.column_kinds import RECEIVED, Columns, check_column, require_column, require_new
from flumeng.config.component import FilterOptions, problem_of
from flumeng.config.functions import TEXT
from flumeng.filters.options import fields
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.quantities import check_absolute


@dataclass(frozen=True)
class Geoip(FilterOptions):
    """Adds columns from a MaxMind database's record of an IP address.

    For a text that is not an address, the attribute `parse_error` has the reason; an address that
    is not in the database gets nulls.
    """

    implementation: ClassVar[str] = "flumeng.filters.geoip:GeoipFilter"

    column: str = option(doc="The column with the addresses, IPv4 or IPv6.", example="client")
    database: str = option(
        doc="A file `.mmdb` on each host that filters events; needs `flumeng[geoip]`.",
        check=check_absolute,
        example="/var/lib/GeoIP/GeoLite2-City.mmdb",
    )
    fields: Mapping[str, str] = option(
        doc="The columns to add, each with the path of its value in a record, and a type.",
        check=check_column,
        example='{country: country.iso_code, latitude: "location.latitude DOUBLE"}',
    )

    looks_up: ClassVar[bool] = True
    notes_errors: ClassVar[bool] = True

    def needs(self) -> Iterator[Need]:
        yield "path", self.database

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.fields:
            yield "fields", "expected at least one column"
        yield from problem_of("fields", partial(fields.kinds, nested=True), None, self.fields)

    def behind(self, columns: Columns) -> Columns:
        if (kind := require_column(columns, self.column).name) != TEXT:
            raise ValueError(f"the column {self.column} is a {kind}: expected a text")
        if columns.get("attrs") != RECEIVED["attrs"]:
            raise ValueError("geoip needs the column attrs: put select after geoip, or keep attrs")
        more = fields.kinds(None, self.fields, nested=True)
        require_new(columns, more)
        return {**columns, **more}
