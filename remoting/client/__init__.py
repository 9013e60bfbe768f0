"""Clients of the cluster for our own programs: administration, message browsing, test sends."""
