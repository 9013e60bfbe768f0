"""Telling open pages that something changed. An announcement carries no state: whoever hears it reads the tables or the snapshot.

So a lost one costs a delay (pages look again every few seconds), never a wrong page, and the writer must not fail over it.
"""

from __future__ import annotations

import logging
from typing import Any

from asgiref.sync import async_to_sync
from channels.exceptions import ChannelFull
from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


def announce(group: str, event: dict[str, Any]) -> None:
    """Send `event` to the channels group now."""
    try:
        async_to_sync(get_channel_layer().group_send)(group, event)
    except (OSError, RedisError, ChannelFull) as error:
        log.warning("could not announce %s to %s: %s", event.get("type"), group, error)


def announce_after_commit(group: str, event: dict[str, Any]) -> None:
    """Send `event` once the surrounding transaction is durable, so that a reader finds what it announces."""
    transaction.on_commit(lambda: announce(group, event))
