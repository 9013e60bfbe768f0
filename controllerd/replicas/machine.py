"""The replicas state as what the Raft log drives: command -> decision -> records -> state, the same on every node (pure)

`observer` is told of every record after it was applied, on every node, with the group as it is then; it must not fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controllerd.replicas.apply import apply_record
from controllerd.replicas.commands import Command, decode_command
from controllerd.replicas.decide import Decision, decide
from controllerd.replicas.records import Record
from controllerd.replicas.state import Group, ReplicasState, decode_state, encode_state
from remoting import codes
from remoting.errors import ProtocolError

Observer = Callable[[Record, Group | None], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a command, with the group as it was right after it."""

    code: int
    remark: str | None
    group: Group | None
    records: tuple[Record, ...]


def _ignore(_record: Record, _group: Group | None) -> None:
    return None


class ReplicasMachine:
    """Holds the state; implements the Raft node's `StateMachine`."""

    def __init__(self, observer: Observer = _ignore) -> None:
        self.state = ReplicasState()
        self._observer = observer

    def apply(self, data: bytes) -> Reply:
        """Decide a logged command and change the state accordingly."""
        try:
            command = decode_command(data)
        except ProtocolError as error:
            return Reply(codes.SYSTEM_ERROR, str(error), None, ())
        decision = decide(self.state, command)
        for record in decision.records:
            apply_record(self.state, record)
            self._observer(record, self.state.groups.get(record.broker_name))
        return self._reply(command, decision)

    def preview(self, command: Command) -> Reply:
        """What the command would answer now, without its changes; `records` tells whether it would change anything."""
        return self._reply(command, decide(self.state, command))

    def snapshot(self) -> bytes:
        """The whole state."""
        return encode_state(self.state)

    def restore(self, data: bytes) -> None:
        """Replace the whole state."""
        self.state = decode_state(data)

    def _reply(self, command: Command, decision: Decision) -> Reply:
        return Reply(decision.code, decision.remark, self.state.groups.get(command.broker_name), decision.records)
