"""The filter ``python``: calls a function of the user, which must return all columns it gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import ddl
from flumeng.filters.contract import Filter
from flumeng.filters.options.python import Python
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError
from flumeng.platform.user_functions import FunctionError, imported, last_line


class PythonFilter(Filter):
    def __init__(self, options: Python) -> None:
        imported(options.function)
        self._name = options.function
        self._given = secrets.filled(options.options)
        self._added = pa.schema([]) if options.adds is None else ddl.columns_of(options.adds)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        schema = pa.schema([*batch.schema, *self._added])
        return batch.arrow(PythonStage(self._name, self._given, schema), schema)


@dataclass(frozen=True)
class PythonStage:
    """Calls the user's function ``name`` with each batch. Raises UserError, FunctionError."""

    name: str
    given: Mapping[str, str]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = imported(self.name)
        for batch in batches:
            try:
                returned = function(batch, **self.given)
            except FlumengError:
                raise
            except Exception as error:
                line = last_line(error, self.name.partition(":")[0])
                raise FunctionError(f"python {self.name} raised {line}") from error
            yield from self._checked(returned)

    def _checked(self, returned: Any) -> Iterator[pa.RecordBatch]:
        if not isinstance(returned, pa.RecordBatch | pa.Table):
            kind = type(returned).__name__
            raise FunctionError(
                f"python {self.name} returned a {kind}: expected a pyarrow.RecordBatch or Table"
            )
        names = returned.schema.names
        for field in self.schema:
            if names.count(field.name) != 1:
                raise FunctionError(
                    f"python {self.name} returned the column {field.name} "
                    f"{names.count(field.name)} times: expected each input column and each of "
                    "adds once"
                )
        unknown = [name for name in names if name not in self.schema.names]
        if unknown:
            raise FunctionError(
                f"python {self.name} returned the unknown column {unknown[0]}: name it in adds"
            )
        try:
            cast = returned.select(self.schema.names).cast(self.schema)
            cast.validate()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FunctionError(
                f"python {self.name} returned other types than those of its input and adds: {error}"
            ) from error
        yield from [cast] if isinstance(cast, pa.RecordBatch) else cast.to_batches()
