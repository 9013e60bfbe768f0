"""This broker's copy of users and permissions: kept on disk, so that it works while no controller is there.

The controllers' view, which the broker asks for anyway, carries the version; another one than ours makes it ask for the whole. A
copy never goes back to an older version of the same cluster, as a controller that lags behind may have one. Secrets are sealed in
it as they are in the controllers' log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from remoting import codes
from remoting.access.model import AccessState, decode_state, encode_state
from remoting.disk import Disk
from remoting.errors import ConnectionLost, LogboomError, NotLeader, ProtocolError, RequestTimeout
from remoting.facts.cluster_view import ClusterView
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.transport.client import RemotingClient
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

FILE: Final = "access.json"
_TIMEOUT_MS: Final = 3000
_CHANGE_TIMEOUT_MS: Final = 5000


class AccessCopy:
    """The copy and its file. Makes the guard decide by it."""

    def __init__(self, disk: Disk, guard: Guard) -> None:
        """A copy that cannot be read is left out: nobody is known until a controller answers."""
        self._disk = disk
        self._guard = guard
        self.cluster = ""
        content = disk.read_bytes(FILE)
        if content is None:
            return
        try:
            fields = orjson.loads(content)
            self.cluster = str(fields["cluster"])
            guard.update(decode_state(fields["state"].encode()))
        except (ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("%s is not readable (%s): no user is known until a controller answers", FILE, error)

    @property
    def state(self) -> AccessState:
        return self._guard.state

    def wants(self, cluster: str, version: int) -> bool:
        """Whether a controller that has this version has news."""
        return cluster != self.cluster or version > self.state.version

    def take(self, cluster: str, state: AccessState) -> None:
        """Keep what a controller said, if it is newer."""
        if not self.wants(cluster, state.version):
            return
        content = {"cluster": cluster, "state": encode_state(state).decode()}
        self._disk.replace_bytes(FILE, orjson.dumps(content))
        self.cluster = cluster
        self._guard.update(state)
        log.info("users and permissions are those of version %d now", state.version)


class AccessFollower:
    """Keeps the copy up to date, and asks the controllers for what only they do."""

    def __init__(self, copy: AccessCopy, client: RemotingClient, controllers: Sequence[str]) -> None:
        self.copy = copy
        self._client = client
        self._controllers = list(controllers)
        self._led = ""  # who answered last as the leader; most answers come from it again
        self._tasks = TaskOwner("access")
        self._refreshing = False

    async def close(self) -> None:
        await self._tasks.close()

    def look(self, view: ClusterView) -> None:
        """A controller's view of the cluster came."""
        if view.cluster is None or view.access_version is None or self._refreshing:
            return
        if self.copy.wants(view.cluster, view.access_version):
            self._refreshing = True
            self._tasks.spawn(self._refresh_in_background(), "follow users and permissions")

    async def ask(self, code: int, ext: Mapping[str, str], body: bytes) -> Command:
        """The answer of the controllers' leader, whatever its code. Raises ConnectionLost, RequestTimeout or NotLeader."""
        last_error: LogboomError = ConnectionLost("no controller is configured")
        first = (self._led,) if self._led else ()
        for named in (*first, *(each for each in self._controllers if each not in first), ""):
            try:
                address = named or await self._leader()
                connection = await self._client.connection(address)
                answer = await connection.call(code, ext, body, _CHANGE_TIMEOUT_MS)
            except ConnectionLost as error:
                last_error = error
                continue
            except RequestTimeout:
                self._led = ""  # it may be frozen, and another one lead
                raise
            if answer.code != codes.CONTROLLER_NOT_LEADER:
                self._led = address
                return answer
            last_error = NotLeader("the controllers have no leader at the moment; try again")
        raise last_error

    async def refresh(self) -> None:
        """Take what the leader has. Raises ConnectionLost, RequestTimeout, NotLeader or ProtocolError."""
        answer = await self.ask(codes.ACCESS_STATE, {}, b"")
        if answer.code == codes.SUCCESS:
            self.copy.take(answer.ext.get("cluster", ""), decode_state(bytes(answer.body)))
        else:
            log.warning("the controllers do not tell users and permissions: %s", answer.remark)

    # ---- inside

    async def _refresh_in_background(self) -> None:
        try:
            await self.refresh()
        except (ConnectionLost, RequestTimeout, NotLeader) as error:
            log.debug("users and permissions stay as they were: %s", error)
        finally:
            self._refreshing = False

    async def _leader(self) -> str:
        for address in self._controllers:
            try:
                answer = await self._client.call(address, codes.CONTROLLER_GET_METADATA_INFO, timeout_ms=_TIMEOUT_MS)
            except LogboomError:
                continue
            if leader := answer.ext.get("controllerLeaderAddress"):
                return leader
        raise ConnectionLost("the controllers have no leader at the moment; try again")
