"""Objects as an input: discovery tasks append listed objects to the lanes of a queue; collect tasks
read ranges of lanes.
"""
