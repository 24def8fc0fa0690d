"""The Spark SQL of filters: Arrow stages where Arrow computes it exactly as Spark does, and checked
text for Spark elsewhere."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from flumeng.config import expressions, sql_generator, sql_text
from flumeng.filters import arrow_text, ddl
from flumeng.filters.arrow_sql import FilterStage
from flumeng.platform.errors import UserError


class Condition:
    """A condition in Spark SQL, translated once for each schema of events. With ``unless`` it is
    also true where that condition is not."""

    def __init__(self, text: str, unless: str | None = None) -> None:
        self.text = text
        self.unless = unless
        self._stages: dict[pa.Schema, FilterStage | None] = {}

    def stage(self, schema: pa.Schema) -> FilterStage | None:
        """Return the condition's Arrow stage; None when Spark has to compute it."""
        if self.unless is not None:
            return None
        if schema not in self._stages:
            self._stages[schema] = arrow_text.condition(schema, self.text)
        return self._stages[schema]

    def for_spark(self, schema: pa.Schema) -> str:
        """Return the text for Spark. Raises UserError for a forbidden expression."""
        text = for_spark(schema, self.text, condition=True)
        if self.unless is None:
            return text
        unless = for_spark(schema, self.unless, condition=True)
        return f"coalesce(NOT ({unless}), TRUE) OR ({text})"


@lru_cache(maxsize=1024)
def for_spark(schema: pa.Schema, text: str, *, condition: bool = False) -> str:
    """Return the text for Spark of an expression over columns of ``schema``, generated from the
    tree that was checked. Raises UserError for a forbidden expression."""
    check = expressions.check_condition if condition else expressions.chosen
    try:
        check(text, ddl.kinds_of(schema))
        return sql_generator.expression(sql_text.parse(text))
    except ValueError as error:
        raise UserError(f"{text!r}: {error}") from error
