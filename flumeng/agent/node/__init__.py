"""The agent of one host: holds the ZooKeeper session, supervises the child processes that do the
work, and reports their state. It imports neither pyarrow nor pyspark: heavy work must never starve
the session."""
