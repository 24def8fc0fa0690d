"""Shared by all processes: errors, logs, files, secrets, security, metrics."""
