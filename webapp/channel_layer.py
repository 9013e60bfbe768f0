"""Django channels in Redis, without scripts there.

The layer is that of `channels_redis`, and so is what it keeps. Two of its steps are Lua, which the embedded server refuses. Here
they are a look and then a change. What `receive` looks at is touched by nobody else: a channel's messages are taken by the one
process that made it, one receiver at a time. While several send, a channel may get a few messages more than its capacity; the
library's own `send` allows that, too.

The library's other layer, over publish and subscribe, needs no scripts either. It is not used: it bounds no queue, keeps one of a
channel that is left while it is asked for, looks ten times a second whether something came, and tells nobody that Redis is
away.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from channels_redis.core import RedisChannelLayer

log = logging.getLogger(__name__)


class ScriptlessChannelLayer(RedisChannelLayer):
    """`flush`, which empties a layer between tests, remains the library's and needs a server with scripts."""

    async def _brpop_with_clean(self, index: int, channel: str, timeout: int) -> bytes | None:
        """Wait for a message: it is kept beside the channel until `_clean_receive_backup`, and what was kept by a receiver that
        was cancelled is put back first."""
        kept = self._backup_channel_name(channel)
        connection = self.connection(index)
        if left := await connection.zrange(kept, 0, -1, withscores=True):
            async with connection.pipeline(transaction=True) as transaction:
                transaction.zadd(channel, dict(left))
                transaction.delete(kept)
                await transaction.execute()
        taken = await connection.bzpopmin(channel, timeout=timeout)
        if taken is None:
            return None
        _, message, sent_s = taken
        await connection.zadd(kept, {message: float(sent_s)})
        return bytes(message)

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Send to every channel of the group that has room."""
        assert self.require_valid_group_name(group), "Group name not valid"
        members = self._group_key(group)
        connection = self.connection(self.consistent_hash(group))
        await connection.zremrangebyscore(members, min=0, max=int(time.time()) - self.group_expiry)
        names = [name.decode() for name in await connection.zrange(members, 0, -1)]
        by_server, messages, capacities = self._map_channel_keys_to_connection(names, message)
        for index, keys in by_server.items():
            server = self.connection(index)
            async with server.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.zremrangebyscore(key, min=0, max=int(time.time()) - int(self.expiry))
                    pipeline.zcard(key)
                waiting = (await pipeline.execute())[1::2]
            with_room = [key for key, count in zip(keys, waiting, strict=True) if count < capacities[key]]
            async with server.pipeline(transaction=False) as pipeline:
                for key in with_room:
                    pipeline.zadd(key, {messages[key]: time.time()})
                    pipeline.expire(key, int(self.expiry))
                await pipeline.execute()
            if len(with_room) < len(keys):
                log.info(
                    "%s of %s processes have no room for what %s is told", len(keys) - len(with_room), len(keys), group
                )
