"""Dead letters in files: reports, purges, and the source ``letters``, which replays them."""
