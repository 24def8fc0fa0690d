"""The pages, as HTML that reads well without scripts."""
