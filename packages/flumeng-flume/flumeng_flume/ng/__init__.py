"""Flume NG: the properties files of Flume 1.x. ``flows.translate`` is the entry point."""
