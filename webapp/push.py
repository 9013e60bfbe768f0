"""The base of all websockets of the console: who may listen, for how long, and how a page is kept up to date.

A consumer pushes whole states, never differences. It follows its subject (`webapp.feeds`), whose viewers are woken together and
share what is built for them. At most `WINDOW` messages are on their way: the client acknowledges each (`{"type": "ack", "seq":
n}`), and nothing is built for one who has stopped reading; it is closed after `ACK_TIMEOUT_S`.

Who hears nothing for `BEAT_S` is sent `{"type": "beat"}`, which is not acknowledged: a page that does not hear even that knows
that its connection is gone, though nobody closed it.

Access is checked at the start, every `RECHECK_S`, and at once when somebody logs out or loses rights (event `access.revoked`). At
the start it is checked once more by who hears of such events already, so nothing that ends it is missed in between.
How many one person may have open is in `webapp.places`.
Close codes: 4401 access ended (log in again), 4404 there is no such thing, 4408 the client stopped acknowledging.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from importlib import import_module
from typing import Any, NamedTuple

from channels.auth import get_user
from channels.consumer import get_handler_name
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from webapp.accounts.permissions import Actor, actor_for
from webapp.accounts.services import session_group, user_group
from webapp.accounts.sessions import is_idle
from webapp.feeds import Moment, following
from webapp.lifecycle import Work
from webapp.places import places

log = logging.getLogger(__name__)

WINDOW = 4
ACK_TIMEOUT_S = 60.0
BEAT_S = 4.0  # static/js/socket.js gives a connection up after 10 s of silence
RECHECK_S = 30.0
MAX_CLIENT_MESSAGE = 4096

ACCESS_ENDED = 4401
NOT_FOUND = 4404
NOT_ACKNOWLEDGED = 4408

BEAT = '{"version": 1, "type": "beat"}'


class Message(NamedTuple):
    """One state as it goes out."""

    seq: int  # rises
    body: str  # the rest, a JSON object: the same text for all who are sent the same
    complete: bool = True  # no more is waiting already

    @property
    def text(self) -> str:
        return f'{{"seq": {self.seq}, {self.body[1:]}'


class PushConsumer(AsyncWebsocketConsumer):
    """Subclasses name the permission and the subject, and say what to send."""

    permission = ""

    def subject(self) -> str:
        """The channels group of what is followed."""
        raise NotImplementedError

    async def open(self) -> bool:
        """Read what the address asks for; False closes with 4404."""
        return True

    async def message(self, moment: Moment) -> Message | None:
        """What to send at this moment, which builds it; None when the client has the newest."""
        raise NotImplementedError

    async def on_client_message(self, message: dict[str, Any]) -> None:
        """What a client says besides acknowledging."""

    # ---- life

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._place: int | None = None  # whose it is
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._place is not None:
                places().leave(self._place)

    async def dispatch(self, message: dict[str, Any]) -> None:
        """As channels does it, but without a visit to the database's thread for every acknowledgement.

        What needs the database here goes through `database_sync_to_async`, which looks after old connections itself.
        """
        await getattr(self, get_handler_name(message))(message)

    async def connect(self) -> None:
        self._wake = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._in_flight: list[int] = []
        self._silent_since_s = asyncio.get_running_loop().time()
        self._tasks: list[asyncio.Task[None]] = []
        self._groups: list[str] = []
        actor = await self._current_actor()
        if actor is None or not actor.may(self.permission):
            await self.close()  # before accepting: the handshake is answered with 403
            return
        if not places().take(actor.user.pk):
            log.info("refusing %s a websocket: too many are open", actor.name)
            await self.close()
            return
        self._place = actor.user.pk
        await self._join(actor.user.pk)
        present = await self._current_actor()  # whose access ended before he joined, of which nobody told him
        if present is None or present.user.pk != actor.user.pk or not present.may(self.permission):
            await self._leave()
            await self.close()
            return
        self.actor = present
        await self.accept()
        if not await self.open():
            await self.close(NOT_FOUND)
            return
        self._tasks = [asyncio.create_task(self._push()), asyncio.create_task(self._recheck())]

    async def disconnect(self, code: int) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._leave()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data is None or len(text_data) > MAX_CLIENT_MESSAGE:
            await self.close(1009)
            return
        try:
            message = json.loads(text_data)
        except ValueError:
            await self.close(1007)
            return
        if not isinstance(message, dict):
            await self.close(1007)
        elif message.get("type") == "ack":
            self._in_flight = [seq for seq in self._in_flight if seq != message.get("seq")]
            self._acknowledged.set()
        else:
            await self.on_client_message(message)

    def wake(self) -> None:
        """Look for something to send."""
        self._wake.set()

    # ---- announcements

    async def access_revoked(self, event: dict[str, Any]) -> None:
        await self.close(ACCESS_ENDED)

    # ---- inside

    async def _join(self, user_id: int) -> None:
        """Hear from now on of what ends the access of this session or person."""
        self._groups = [session_group(self.scope["session"].session_key), user_group(user_id)]
        for group in self._groups:
            await self.channel_layer.group_add(group, self.channel_name)

    async def _leave(self) -> None:
        groups, self._groups = self._groups, []
        for group in groups:
            await self.channel_layer.group_discard(group, self.channel_name)

    async def _push(self) -> None:
        try:
            async with following(self.subject(), self._wake) as feed:
                while await self._room():
                    self._wake.clear()
                    message = await self.message(feed.moment)
                    if message is not None:
                        self._in_flight.append(message.seq)
                        await self._say(message.text)
                    if message is None or message.complete:
                        await self._next_wake()
            await self.close(NOT_ACKNOWLEDGED)
        except Exception:
            log.exception("a websocket of %s failed", self.actor.name)
            await self.close(1011)

    async def _say(self, text: str) -> None:
        self._silent_since_s = asyncio.get_running_loop().time()
        await self.send(text_data=text)

    async def _next_wake(self) -> None:
        """Wait until there is something to look at, and let the client hear that it is still connected."""
        while True:
            try:
                async with asyncio.timeout_at(self._silent_since_s + BEAT_S):
                    await self._wake.wait()
                    return
            except TimeoutError:
                await self._say(BEAT)

    async def _room(self) -> bool:
        """Wait until another message may be on its way."""
        while len(self._in_flight) >= WINDOW:
            self._acknowledged.clear()
            try:
                await asyncio.wait_for(self._acknowledged.wait(), ACK_TIMEOUT_S)
            except TimeoutError:
                return False
        return True

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            actor = await self._current_actor()
            if actor is None or not actor.may(self.permission):
                await self.close(ACCESS_ENDED)
                return
            self.actor = actor

    async def _current_actor(self) -> Actor | None:
        """Who the session belongs to now, read anew."""
        session_key = self.scope["session"].session_key
        if session_key is None:
            return None
        store = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
        user = await get_user({"session": store})
        if not user.is_authenticated or is_idle(store):
            return None
        ip = (self.scope.get("client") or [""])[0]
        return await database_sync_to_async(actor_for)(user, ip=ip)


class WorkConsumer(PushConsumer):
    """One viewer of one piece of work, whose key is the only part of the address that changes."""

    kind: type[Work]

    def subject(self) -> str:
        return self.kind.group_of(self.key)

    async def open(self) -> bool:
        (self.key,) = self.scope["url_route"]["kwargs"].values()
        return await database_sync_to_async(self.kind.objects.filter(pk=self.key).exists)()
