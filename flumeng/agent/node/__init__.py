"""The agent of one host: holds the ZooKeeper session, supervises child processes, reports their
state. Imports neither pyarrow nor pyspark: heavy work must never starve the session."""
