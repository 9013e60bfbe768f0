"""What the controllers agree on about broker replicas: values only (pure)

A group is all replicas of one broker name. Nothing here changes: `apply.py` makes another state, so whoever was handed a group or
a state keeps a consistent picture.

Three counters must never be mixed up: the Raft term (not here), `master_epoch` (who leads the group) and `sync_state_set_epoch`
(version of the set). Neither epoch nor a broker id is ever used twice: cleaning a group leaves its floor in `retired`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

import orjson

from controllerd.records.subject import UnknownFormat
from remoting.errors import ProtocolError
from remoting.facts.codec import read

MAX_EPOCH: Final = 2**31 - 1
MAX_GROUPS: Final = 4096
MAX_REPLICAS: Final = 64
MAX_REPLICAS_IN_ALL: Final = 16384
MAX_UNCLEAN_ELECTIONS: Final = 16  # part of what MasterElected means, so it never changes
_FORMAT: Final = 1
_MAX_STATE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Replica:
    """One registered broker; addresses are host:port, or empty when the broker did not say."""

    broker_id: int
    address: str
    register_check_code: str
    ha_address: str = ""
    grpc_address: str = ""


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """A master was made of a replica outside the sync-state set: what is known of the price.

    `elected_*` is where its log ended, `known_*` the farthest that a member of the set said of its own (-1: none did). Whatever
    lies between is lost, acknowledged or not. `at_ms` is the deciding controller's wall clock.
    """

    master_epoch: int
    broker_id: int
    sync_state_set: tuple[int, ...]
    elected_epoch: int
    elected_offset: int
    known_epoch: int
    known_offset: int
    at_ms: int

    @property
    def lost_bytes(self) -> int | None:
        """How many bytes of the log are lost at least; None when that cannot be told."""
        if self.known_offset < 0 or self.known_epoch != self.elected_epoch:
            return None
        return max(0, self.known_offset - self.elected_offset)

    @property
    def sentence(self) -> str:
        """What it cost, for a person."""
        if self.known_offset < 0:
            cost = "how much is lost is not known"
        elif self.lost_bytes is None:
            cost = f"lost is what it lacks of the log that went up to {self.known_offset} of epoch {self.known_epoch}"
        else:
            cost = f"lost are {self.lost_bytes} bytes that a member of the set was known to have"
        return (
            f"broker {self.broker_id} became master of epoch {self.master_epoch} from outside the sync-state set "
            f"{list(self.sync_state_set)}: its log ends at {self.elected_offset} of epoch {self.elected_epoch}; {cost}"
        )


@dataclass(frozen=True, slots=True)
class Group:
    """All replicas of one broker name.

    `had_master` tells a group whose set was emptied by cleaning from one that never had a master. `epoch_floor` is the
    highest master epoch that a registering broker remembered. `master_incarnation` names the process that was elected (0: it
    did not say). `unclean_elections` are the last few, oldest first. `lives` has for members of the set which life of them is
    counted, where that is known (`lives.py`).
    """

    cluster_name: str
    broker_name: str
    next_broker_id: int = 1
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    sync_state_set: tuple[int, ...] = ()
    master_broker_id: int | None = None
    master_incarnation: int = 0
    had_master: bool = False
    epoch_floor: int = 0
    unclean_elections: tuple[UncleanElection, ...] = ()
    lives: Mapping[int, int] = field(default_factory=dict)
    replicas: Mapping[int, Replica] = field(default_factory=dict)

    @property
    def master(self) -> Replica | None:
        return None if self.master_broker_id is None else self.replicas[self.master_broker_id]


_GROUP_FIELDS: Final = fields(Group)
_REPLICA_FIELDS: Final = fields(Replica)


@dataclass(frozen=True, slots=True)
class Retired:
    """What must not be used again by a later group of the same name."""

    master_epoch: int
    sync_state_set_epoch: int
    next_broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicasState:
    """All groups, by broker name."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    retired: Mapping[str, Retired] = field(default_factory=dict)

    def next_broker_id(self, broker_name: str) -> int:
        """The id that the next new replica of the name gets."""
        group = self.groups.get(broker_name)
        if group is not None:
            return group.next_broker_id
        retired = self.retired.get(broker_name)
        return retired.next_broker_id if retired else 1


def encode_state(state: ReplicasState) -> bytes:
    """The state in one canonical form: equal states give equal bytes."""
    groups = [_fields_of_group(group) for _, group in sorted(state.groups.items())]
    retired = {name: asdict(floor) for name, floor in state.retired.items()}
    content = {"format": _FORMAT, "groups": groups, "retired": retired}
    return zlib.compress(orjson.dumps(content, option=orjson.OPT_SORT_KEYS))


def _fields_of_group(group: Group) -> dict[str, Any]:
    # Not all of it with `asdict`, which copies the replicas one by one, whoever needs them as they are.
    told = {each.name: getattr(group, each.name) for each in _GROUP_FIELDS}
    told["unclean_elections"] = [asdict(each) for each in group.unclean_elections]
    told["lives"] = sorted(group.lives.items())
    if not group.lives:
        del told["lives"]  # who does not know the records that fill it can read this
    told["replicas"] = [_fields_of_replica(replica) for _, replica in sorted(group.replicas.items())]
    return told


def _fields_of_replica(replica: Replica) -> dict[str, Any]:
    return {each.name: getattr(replica, each.name) for each in _REPLICA_FIELDS}


def decode_state(content: bytes) -> ReplicasState:
    """The state as written by `encode_state`. Raises ProtocolError for anything else."""
    decompressor = zlib.decompressobj()
    try:
        text = decompressor.decompress(content, _MAX_STATE_BYTES)
        if not decompressor.eof:
            raise ProtocolError("a snapshot of the replicas state that is cut off or too large")
        fields = orjson.loads(text)
        if fields["format"] != _FORMAT:
            raise UnknownFormat(f"a state of the replicas in format {fields['format']}")
        groups = [_decode_group(group) for group in fields["groups"]]
        retired = {name: read(Retired, floor, exactly=True) for name, floor in fields["retired"].items()}
        return ReplicasState({group.broker_name: group for group in groups}, retired)
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"undecodable snapshot of the replicas state: {error}") from error


def _decode_group(fields: dict[str, Any]) -> Group:
    replicas = [read(Replica, each, exactly=True) for each in fields.pop("replicas")]
    lives = {int(broker_id): int(life) for broker_id, life in fields.pop("lives", ())}
    group = read(Group, fields, exactly=True)
    return replace(group, lives=lives, replicas={each.broker_id: each for each in replicas})
