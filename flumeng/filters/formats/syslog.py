"""Syslog, as ``flumeng.filters.syslog`` reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from flumeng.filters import syslog
from flumeng.filters.formats import Found
from flumeng.filters.local_times import to_utc
from flumeng.filters.options.parse import Parse
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class SyslogReader:
    timezone: str | None = None

    @classmethod
    def of(cls, options: Parse) -> SyslogReader:
        if options.timezone:
            try:
                to_utc(np.zeros(1, np.int64), options.timezone, np.zeros(1, np.int64))
            except pa.ArrowInvalid as error:
                raise UserError(
                    f"parse: this host has no rules of the time zone {options.timezone}"
                ) from error
        return cls(options.timezone)

    @property
    def columns(self) -> pa.Schema:
        return pa.schema(syslog.COLUMNS)

    def read(self, bodies: pa.Array, received: pa.Array) -> Found:
        parsed = syslog.parse(bodies, received, self.timezone)
        return Found(parsed.columns, parsed.reasons, parsed.ts, parsed.host)
