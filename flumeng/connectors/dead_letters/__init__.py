"""Dead letters as an input: the letters that a replay has listed, part by part."""
