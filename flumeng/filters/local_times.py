"""What a clock on the wall showed, as moments: with the time zone's own rules, for many rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Positions
from flumeng.filters.timestamps import FIRST_MOMENT, LAST_MOMENT


def to_utc(micros: Positions, timezone: str, received: Positions) -> Positions:
    """Microseconds since the epoch in UTC of local ones; ``timezone`` is an IANA name.

    Of an hour that autumn has twice, the one nearer to ``received`` is meant. A time that spring
    leaves out becomes the moment at which the clock jumped. Raises ``pa.ArrowInvalid`` where the
    host does not know the zone.
    """
    local = pa.array(micros, pa.timestamp("us"))
    early, late = (
        pc.assume_timezone(local, timezone, ambiguous=which, nonexistent="latest")
        .cast(pa.int64())
        .to_numpy()
        for which in ("earliest", "latest")
    )
    moments: Positions = np.where(abs(late - received) < abs(early - received), late, early)
    return moments.clip(FIRST_MOMENT, LAST_MOMENT)
