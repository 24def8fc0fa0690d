"""The sink ``spark``: any format that Spark writes."""
