"""Objects as an input: the items of a work queue, whose lanes are partitions.

A discovery task lists objects and appends them to lanes; collect tasks read lanes in exact ranges.
"""
