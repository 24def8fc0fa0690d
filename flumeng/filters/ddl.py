"""Columns that options name in Spark DDL."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from flumeng.errors import UserError
from flumeng.filters.lazy_batch import TIMES


def read(ddl: str) -> StructType:
    """Raises UserError."""
    wrong = f"{ddl!r} is not a list of columns in Spark DDL"
    try:
        schema = StructType.fromDDL(ddl)
    except ParseException as error:
        raise UserError(wrong) from error
    if not isinstance(schema, StructType):
        raise UserError(wrong)
    return schema


def columns_of(ddl: str) -> pa.Schema:
    """The same for Arrow, each of which may be null. Raises UserError."""
    found = to_arrow_schema(read(ddl), **TIMES)
    return pa.schema([field.with_nullable(True) for field in found])
