"""What controllers answer, as values (pure).

Whatever cannot be understood raises ProtocolError, ValueError, KeyError, TypeError or AttributeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerd.replication.roles.effects import RoleView
from remoting.bare_json import loads_bare
from remoting.disk import Bytes
from remoting.errors import InvalidParameter
from remoting.transport.client import split_address

MAX_MEMBERS: Final = 1000
_MOST_TIME_DIGITS: Final = 15


def positive(text: str) -> int:
    """A broker id."""
    value = int(text)
    if value < 1:
        raise ValueError(f"{value} is not a broker id")
    return value


def view(ext: Mapping[str, str], body: Bytes) -> RoleView | None:
    """The view that an answer or a notification carries; None when it names no epoch."""
    if "masterEpoch" not in ext:
        return None
    master_id = ext.get("masterBrokerId", "")
    members, set_epoch = sync_state_set(body)
    return RoleView(
        master_id=positive(master_id) if master_id and int(master_id) >= 0 else None,
        master_epoch=int(ext["masterEpoch"]),
        members=members,
        set_epoch=int(ext.get("syncStateSetEpoch") or set_epoch),
        master_address=ext.get("masterAddress", ""),
        master_ha_address=ext.get("masterHaAddress") or _usual_ha_address(ext.get("masterAddress", "")),
        master_grpc_address=ext.get("masterGrpcAddress", ""),
        master_incarnation=int(ext.get("masterIncarnation") or 0),
        master_is_ours=bool(ext.get("masterHaAddress")),
    )


def _usual_ha_address(address: str) -> str:
    """Where the original's controller names no replication address: by custom it is the next port."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}" if host and port.isdecimal() else ""


def sync_state_set(body: Bytes) -> tuple[frozenset[int], int]:
    """The members and the epoch in a body that holds them, with or without a group around; empty without a body."""
    if not body:
        return frozenset(), 0
    value = loads_bare(body)
    members = value.get("syncStateSet") or []
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"a sync-state set of {len(members)} members")
    return frozenset(int(member) for member in members), int(value.get("syncStateSetEpoch") or 0)


def members(body: Bytes, broker_name: str) -> tuple[frozenset[int], frozenset[int]]:
    """All broker ids registered in the group, and those of them that say that they are learners."""
    table = loads_bare(body)["replicasInfoTable"].get(broker_name) or {}
    replicas = [*(table.get("inSyncReplicas") or []), *(table.get("notInSyncReplicas") or [])][:MAX_MEMBERS]
    ids = frozenset(positive(str(replica["brokerId"])) for replica in replicas)
    return ids, frozenset(int(replica["brokerId"]) for replica in replicas if replica.get("learner") is True)


def clock_ms(ext: Mapping[str, str]) -> int | None:
    """What a controller's wall clock said when it answered; None when it did not tell, as older ones and the original."""
    text = ext.get("currentTimeMillis", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_TIME_DIGITS else None


def is_address(text: str) -> bool:
    """Whether it is host:port."""
    try:
        split_address(text)
    except InvalidParameter:
        return False
    return True
