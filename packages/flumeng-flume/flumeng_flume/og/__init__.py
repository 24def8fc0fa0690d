"""Flume OG: specifications of data flows, and scripts of the shell, of Flume 0.9.
``flows.translate`` is the entry point."""
