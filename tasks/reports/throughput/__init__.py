"""Throughput: messages and bytes per topic, queue and minute; body sizes; the most frequent keys."""
