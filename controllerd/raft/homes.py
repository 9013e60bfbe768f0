"""Who is at home at a controller's address: asked before a process is admitted under that controller's name

Silence is no answer. A process that takes a connection and says nothing is alive, so it is waited for as long as that lasts. An
address that nothing comes back from may be a machine that is gone, or this process was not run while the answer came: it counts
as empty after some looks in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controllerd.raft.quorum import NodeId
from remoting import codes
from remoting.errors import ConnectionLost, RequestTimeout
from remoting.transport.client import connect
from remoting.transport.identity import Identity

LOOK_TIMEOUT_MS: Final = 1000
_PART_TIMEOUT_MS: Final = LOOK_TIMEOUT_MS // 2
_LOOKS: Final = 5


class Homes:
    """Looks at addresses; keeps how often each node's has been silent (so many as there are members)."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._silent_looks: dict[NodeId, int] = {}

    async def life(self, node: NodeId, address: str, introduction: Mapping[str, str]) -> str | None:
        """The life of the process at the node's address; empty when nobody is there, or one that does not say, None while that
        cannot be told. Takes up to `LOOK_TIMEOUT_MS`."""
        try:
            connection = await connect(address, timeout_ms=_PART_TIMEOUT_MS, identity=self._identity)
        except ConnectionLost as error:
            if not isinstance(error.__cause__, TimeoutError):
                self._silent_looks.pop(node, None)
                return ""
            looks = self._silent_looks.get(node, 0) + 1
            self._silent_looks[node] = looks
            return None if looks < _LOOKS else ""
        self._silent_looks.pop(node, None)
        try:
            ext = {**introduction, "asks": "true"}
            answer = await connection.call(codes.RAFT_HELLO, ext, timeout_ms=_PART_TIMEOUT_MS)
        except RequestTimeout:
            return None
        except ConnectionLost:
            return ""
        finally:
            connection.close()
        return answer.ext.get("life", "") if answer.code == codes.SUCCESS else ""
