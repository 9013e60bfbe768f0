"""Reads what controllers wrote while their log held requests, which everybody decided again, and not records (pure)

Only a data directory of that time holds such entries and snapshots; none is written any more, and compaction drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from controllerd.access.requests import CreateUser, DeleteUser, PutEntries, RemoveEntries, UpdateUser
from controllerd.replicas import requests as replicas
from controllerd.replicas.state import decode_state as decode_replicas
from remoting.access.model import decode_state as decode_access
from remoting.access.model import read_policies, resource
from remoting.errors import InvalidParameter, ProtocolError
from remoting.facts.codec import read

_ACCESS_MARK: Final = b"\x01"
_REPLICAS_MARK: Final = b'{"format":1,'
_BOTH: Final = b"LBM1"
_LENGTH_BYTES: Final = 4
_ZLIB: Final = b"\x78"
_KINDS: Final = {
    "CreateUser": CreateUser,
    "UpdateUser": UpdateUser,
    "DeleteUser": DeleteUser,
    "apply_broker_id": replicas.ApplyBrokerId,
    "register_broker": replicas.RegisterBroker,
    "alter_sync_state_set": replicas.AlterSyncStateSet,
    "elect_master": replicas.ElectMaster,
    "clean_broker": replicas.CleanBroker,
}


def former_request(content: bytes) -> Any:
    """The request of such an entry; None for an entry of records. Raises ProtocolError."""
    if not content.startswith((_ACCESS_MARK, _REPLICAS_MARK)):
        return None
    try:
        fields = orjson.loads(content.removeprefix(_ACCESS_MARK))
        kind = fields.pop("kind")
        del fields["format"]
        if kind == "PutEntries":
            return PutEntries(fields["name"], read_policies(fields["policies"]))
        if kind == "RemoveEntries":
            wanted = fields["resource"]
            return RemoveEntries(fields["name"], fields["policy"], None if wanted is None else resource(wanted))
        return read(_KINDS[kind], fields, exactly=True)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidParameter) as error:
        raise ProtocolError(f"an undecodable request in the log: {error}") from error


def former_states(content: bytes) -> Mapping[str, Any] | None:
    """The states of such a snapshot by subject; None for a later one. Raises ProtocolError."""
    if content.startswith(_ZLIB):
        return {"replicas": decode_replicas(content)}
    if not content.startswith(_BOTH):
        return None
    start = len(_BOTH) + _LENGTH_BYTES
    end = start + int.from_bytes(content[len(_BOTH) : start])
    return {"replicas": decode_replicas(content[start:end]), "access": decode_access(content[end:])}
