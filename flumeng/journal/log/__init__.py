"""Journals on disk: frames, segments, group commit, recovery, repair."""
