"""The journals of another flow as an input: a flow that reads a flow.

Executors import ``reader`` and no other module of this folder.
"""
