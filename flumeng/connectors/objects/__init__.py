"""Objects as an input: discovery tasks append them to a queue's lanes, of which collect tasks read
ranges.
"""
