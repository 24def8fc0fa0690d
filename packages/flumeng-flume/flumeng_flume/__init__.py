"""Imports Flume's configurations as flow files, with a finding for each property and component.

Pure: texts in, flows and findings out. ``ng`` reads the properties of Flume 1.x, ``og`` the
specifications of data flows of Flume 0.9. Each kind of component has a table with a row for each
type; ``answers`` maps the properties.
"""
