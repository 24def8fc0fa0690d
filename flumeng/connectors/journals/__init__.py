"""Journals as an input. Executors import ``reader`` and no other module of this folder."""
