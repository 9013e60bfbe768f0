"""Fixtures for files that share a cluster among their tests."""

from __future__ import annotations

from tests.support.made_whole import cluster, running, topic

__all__ = ["cluster", "running", "topic"]
