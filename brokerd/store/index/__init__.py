"""Finding messages by key: index files in RocketMQ's format, derived from the log."""
