"""Journals as an input. Executors import only ``reader`` of this folder."""
