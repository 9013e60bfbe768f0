"""Spark: the server that runs, sessions on it, and the `logboom` data source that reads topics as Arrow batches."""
