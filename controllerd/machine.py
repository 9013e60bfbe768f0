"""What the controllers' log drives: the broker replicas, and users with their permissions (pure)

A snapshot holds both; while there is no user it is the replicas' alone, as earlier versions wrote it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from controllerd.access.commands import MARK, decode_access
from controllerd.access.decide import decide_access
from controllerd.replicas.machine import ReplicasMachine
from remoting import codes
from remoting.access.model import AccessState, decode_state, encode_state
from remoting.errors import ProtocolError

_SNAPSHOT: Final = b"LBM1"
_LENGTH: Final = struct.Struct(">I")
_MAX_ACCESS_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class AccessReply:
    """The outcome of a change of users or permissions."""

    code: int
    remark: str | None
    version: int


class ControllerMachine:
    """Implements the Raft node's `StateMachine`. `access_changed` hears of every new state, on every controller."""

    def __init__(self, replicas: ReplicasMachine, access_changed: Callable[[AccessState], None]) -> None:
        self.replicas = replicas
        self.access = AccessState()
        self._access_changed = access_changed

    def apply(self, data: bytes) -> Any:
        """Decide a logged command and change the state accordingly."""
        if not data.startswith(MARK):
            return self.replicas.apply(data)
        try:
            decision = decide_access(self.access, decode_access(data))
        except ProtocolError as error:
            return AccessReply(codes.SYSTEM_ERROR, str(error), self.access.version)
        if decision.state is not None:
            self._take(decision.state)
        return AccessReply(decision.code, decision.remark, self.access.version)

    def snapshot(self) -> bytes:
        """The whole state."""
        replicas = self.replicas.snapshot()
        if not self.access.version:
            return replicas
        return b"".join((_SNAPSHOT, _LENGTH.pack(len(replicas)), replicas, encode_state(self.access)))

    def restore(self, data: bytes) -> None:
        """Replace the whole state."""
        if not data.startswith(_SNAPSHOT):
            self.replicas.restore(data)
            self._take(AccessState())
            return
        start = len(_SNAPSHOT) + _LENGTH.size
        if len(data) < start:
            raise ProtocolError("a snapshot that is cut off")
        (length,) = _LENGTH.unpack_from(data, len(_SNAPSHOT))
        if start + length > len(data) or len(data) - start - length > _MAX_ACCESS_BYTES:
            raise ProtocolError("a snapshot that is cut off or too large")
        access = decode_state(data[start + length :])
        self.replicas.restore(data[start : start + length])
        self._take(access)

    def _take(self, access: AccessState) -> None:
        self.access = access
        self._access_changed(access)
