"""Journals on disk or in memory: frames, segments, group commit, recovery, repair."""
