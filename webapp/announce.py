"""Telling whoever follows something that it changed, and hearing it. An announcement is no source of state: who hears it looks.

So a lost one costs a delay (pages look again every few seconds), never a wrong page, and the writer must not fail over it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from asgiref.sync import async_to_sync
from channels.exceptions import ChannelFull
from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

LAYER_ERRORS = (OSError, RedisError, ChannelFull)
_LEAVE_S = 2.0


def announce(group: str, event: dict[str, Any]) -> None:
    """Send `event` to the channels group now."""
    try:
        async_to_sync(get_channel_layer().group_send)(group, event)
    except LAYER_ERRORS as error:
        log.warning("could not announce %s to %s: %s", event.get("type"), group, error)


def announce_after_commit(group: str, event: dict[str, Any]) -> None:
    """Send `event` once the surrounding transaction is durable, so that a reader finds what it announces."""
    transaction.on_commit(lambda: announce(group, event))


@asynccontextmanager
async def hearing(group: str, until_s: float) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any]]]]:
    """Belong to the channels group inside the block, which gets a function that waits for the next event.

    `until_s` is a time of the running loop's clock; waiting longer raises TimeoutError. A channel layer that fails raises one
    of LAYER_ERRORS. The membership ends with the block; if the layer does not answer then, it expires by itself.
    """
    layer = get_channel_layer()
    channel = await layer.new_channel()

    async def hear() -> dict[str, Any]:
        async with asyncio.timeout_at(until_s):
            return await layer.receive(channel)

    try:
        async with asyncio.timeout_at(until_s):
            await layer.group_add(group, channel)
        yield hear
    finally:
        try:
            async with asyncio.timeout(_LEAVE_S):
                await layer.group_discard(group, channel)
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    while True:  # what came and nobody waited for would stay in the layer's memory
                        await layer.receive(channel)
        except LAYER_ERRORS as error:
            log.warning("could not leave %s: %s", group, error)
