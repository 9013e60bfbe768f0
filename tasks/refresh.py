"""Telling the collector that something changed just now, so that pages show it before its next look."""

from __future__ import annotations

import logging

import redis

from tasks.claims import connection

log = logging.getLogger(__name__)

CHANNEL = "logboom:refresh"


def ask_for_refresh() -> None:
    """Ask the collector to look now. If Redis does not answer, it looks within a second anyway."""
    try:
        connection().publish(CHANNEL, "1")
    except redis.RedisError as error:
        log.warning("could not ask the collector to look again: %s", error)
