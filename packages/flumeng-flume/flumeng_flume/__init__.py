"""Imports Flume's configurations as flow files, with a finding for each property and component.

Pure: texts in, flows and findings out. ``ng`` reads the properties of Flume 1.x, ``og`` the
specifications of data flows of Flume 0.9. A component of either is a row in a table of its kind;
``answers`` maps its properties.
"""
