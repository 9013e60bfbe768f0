"""What is written into the Raft log: requests, together with what the leader observed when it took them (pure)

Every node decides a command again when it applies it, from the command and the state alone: no clock, no liveness table, no
chance. So the leader's observations (who is alive, with which epoch and offset) travel inside.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

from remoting.errors import ProtocolError

_FORMAT: Final = 1


class Trigger(StrEnum):
    """Who wants an election."""

    CONTROLLER = "controller"
    BROKER = "broker"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Observation:
    """One live replica as its last heartbeat described it.

    `lost_tail`: it restarted without everything that it had acknowledged, and the sync-state set was not judged since.
    """

    broker_id: int
    epoch: int
    max_offset: int
    election_priority: int
    incarnation: int = 0
    is_learner: bool = False
    lost_tail: bool = False


@dataclass(frozen=True, slots=True)
class ApplyBrokerId:
    """A broker claims the id that it was told is free; the check code makes a repetition harmless."""

    cluster_name: str
    broker_name: str
    broker_id: int
    register_check_code: str


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A broker that has its id says where it is, and the highest master epoch that it remembers.

    `lost_tail`: it restarted without everything that it had acknowledged; its log ends at `max_offset` now.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    grpc_address: str
    known_epoch: int = 0
    lost_tail: bool = False
    max_offset: int = -1


@dataclass(frozen=True, slots=True)
class AlterSyncStateSet:
    """The master proposes a whole new set over the version that it knows."""

    broker_name: str
    master_broker_id: int
    master_epoch: int
    proposed: tuple[int, ...]
    sync_state_set_epoch: int
    not_alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectMaster:
    """Find a master among the observed replicas.

    `seen_master_epoch` is the epoch that the controller looked at when it found the master dead: when the group moved on in the
    meantime, the finding is out of date. `broker_id` is wanted as master only when `designate` is set. `last_known` is what dead
    members of the sync-state set said last, and `at_ms` the wall clock; both serve only to say what an unclean election costs.
    """

    cluster_name: str
    broker_name: str
    trigger: Trigger
    observed: tuple[Observation, ...]
    broker_id: int | None = None
    designate: bool = False
    unclean: bool = False
    seen_master_epoch: int | None = None
    last_known: tuple[Observation, ...] = ()
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class CleanBroker:
    """An administrator forgets some replicas (None: all of them)."""

    cluster_name: str
    broker_name: str
    broker_ids: tuple[int, ...] | None
    clean_living: bool
    alive: tuple[int, ...]


Command = ApplyBrokerId | RegisterBroker | AlterSyncStateSet | ElectMaster | CleanBroker

_KINDS: dict[str, type[Any]] = {
    "apply_broker_id": ApplyBrokerId,
    "register_broker": RegisterBroker,
    "alter_sync_state_set": AlterSyncStateSet,
    "elect_master": ElectMaster,
    "clean_broker": CleanBroker,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_TUPLES = ("proposed", "not_alive", "alive", "broker_ids")


def encode_command(command: Command) -> bytes:
    """A command as a log entry."""
    return orjson.dumps({"format": _FORMAT, "kind": _NAMES[type(command)], **asdict(command)})


def decode_command(content: bytes) -> Command:
    """A command as written by `encode_command`. Raises ProtocolError for anything else."""
    try:
        fields: dict[str, Any] = orjson.loads(content)
        version, kind = fields.pop("format"), fields.pop("kind")
        if version != _FORMAT or kind not in _KINDS:
            raise ProtocolError(f"a command {kind!r} of format {version} is not understood")
        for name in _TUPLES:
            if fields.get(name) is not None:
                fields[name] = tuple(fields[name])
        if kind == "elect_master":
            fields["trigger"] = Trigger(fields["trigger"])
            for name in ("observed", "last_known"):
                fields[name] = tuple(Observation(**observation) for observation in fields.get(name, ()))
        command: Command = _KINDS[kind](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"undecodable command: {error}") from error
    return command
