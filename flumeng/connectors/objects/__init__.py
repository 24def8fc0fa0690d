"""Objects source: discovery tasks fill the lanes of a queue, collect tasks read ranges of lanes."""
