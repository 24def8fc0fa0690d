"""Reads buffers of Arrow arrays as numpy arrays, without Arrow's compute functions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def offsets_of(array: pa.Array) -> NDArray[np.int32]:
    """Return the n + 1 offsets of n texts, binary values or maps, into the data of the array."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
