"""The agent of one host: a small control process that supervises the ones that do the work.

It holds the ZooKeeper session, turns the assignment into what its children should run, and reports
what they say. It imports neither pyarrow nor pyspark: heavy work must never starve the session.
"""
