"""Out of Flume: its configurations become flow files, with a finding for each thing that stood
there.

Pure: texts in, flows and findings out. ``ng`` reads the properties of Flume 1.x, ``og`` the
specifications of data flows of Flume 0.9. A component of either is a row in a table of its kind;
``answers`` has the words for its properties.
"""
