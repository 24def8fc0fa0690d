"""Pollers as an input: the due times of a schedule are the items of a queue with one lane.

A discovery task appends what is due; the collect task that has the lane asks, one due time after
the other, since each goes on from the state that the one before has left.
"""
