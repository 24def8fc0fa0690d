"""Checks whether bodies are JSON: all at once, and one by one only when that fails."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.platform.json_surrogates import without_surrogates

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


def are_json(bodies: pa.Array) -> pa.Array:
    """Return whether each body is JSON, perhaps with unpaired surrogates; null is not."""
    bodies = pc.fill_null(bodies, b"")
    everything = pa.ListArray.from_arrays(pa.array([0, len(bodies)], pa.int32()), bodies)
    joined = pc.binary_join(everything, b",")[0].as_py()
    lengths = pc.binary_length(bodies).to_numpy(zero_copy_only=False)
    if _are_values(joined, lengths):
        return pa.array(np.ones(len(bodies), np.bool_))
    joined = without_surrogates(joined)
    if _are_values(joined, lengths):
        return pa.array(np.ones(len(bodies), np.bool_))
    ends = np.cumsum(lengths + 1) - 1
    pieces = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    return pa.array([_is_json(joined[start:end]) for start, end in pieces], pa.bool_())


def _are_values(joined: bytes, lengths: npt.NDArray[np.int32]) -> bool:
    """Whether all bodies are JSON: an array of them has as many values, each as long as its body,
    so only commas separate them. Also False when white space surrounds a body."""
    try:
        values = _decode_array(b"[" + joined + b"]")
    except (msgspec.DecodeError, RecursionError):
        return False
    if len(values) != len(lengths):
        return False
    return bool((np.fromiter(map(len, values), np.int64, len(values)) == lengths).all())


def _is_json(body: bytes) -> bool:
    try:
        _decode_value(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
