"""The real Apache RocketMQ beside ours: not in the default run, as it needs a JDK and Maven. `make interop` runs it."""
