"""The cost of merging one accumulator term does not grow with the flows of the process."""

from __future__ import annotations

import operator

from flumeng.agent.collector.accumulators import MergedEntries


def test_accumulator_term_is_merged_into_the_existing_value() -> None:
    param = MergedEntries[int](operator.add)
    value = param.zero({("web/0", "read"): 1})
    assert value == {}
    for term in ({("web/0", "read"): 2}, {("web/0", "read"): 3, ("app/0", "read"): 4}):
        assert param.addInPlace(value, term) is value, "all other flows were copied"
    assert value == {("web/0", "read"): 5, ("app/0", "read"): 4}
