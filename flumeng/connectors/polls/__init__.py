"""Pollers as an input: the due times of a schedule are the items of a queue with one lane.

A discovery task appends what is due. The collector that has the lane asks, one due time after the
other, and keeps each answer in a file, since who asks again is answered otherwise. Batches read
these files in exact ranges.
"""
