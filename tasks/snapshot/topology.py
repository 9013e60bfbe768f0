"""Controllers, broker groups and their replicas (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.snapshot.inputs import Look, own_entry, whole
from tasks.snapshot.waiting import waiting

UNREACHABLE = "unreachable"
_BROKER_ROLES = {"master": "master", "replica": "replica", "slave": "replica", "fenced": "fenced"}
_CONTROLLER_ROLES = frozenset({"leader", "follower", "candidate"})


def controllers(look: Look) -> list[dict[str, Any]]:
    """Every controller, by its own word if it was asked; one that does not answer is unreachable and its numbers unknown.

    Controllers that joined later are not among those that are asked: of them the leader tells. Those that left are left out.
    """
    view = look.view
    members = [str(each.get("address")) for each in (view or {}).get("controllers") or ()]
    asked = [address for address in look.controllers if address in look.views or not members or address in members]
    found = []
    for index, address in enumerate([*asked, *(each for each in members if each not in look.controllers)]):
        own_view = look.views.get(address)
        own = own_entry(own_view, address) if own_view is not None else None
        named = own_entry(view, address) if view is not None else None
        if address not in look.controllers and named is not None and named.get("alive"):
            own = named
        role = str(own["role"]).lower() if own else UNREACHABLE
        # between two terms a node may call itself something that pages have no word for
        found.append(
            {
                "id": (own or named or {}).get("id") or f"n{index}",
                "address": address,
                "member": str((named or {}).get("member") or "unknown"),
                "role": role if role in _CONTROLLER_ROLES or role == UNREACHABLE else "candidate",
                "term": whole((own or {}).get("term")),
                "commit_index": whole((own or {}).get("commitIndex")),
                "applied_index": whole((own or {}).get("appliedIndex")),
            }
        )
    return found


def groups(look: Look, previous: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Every broker group. Without a controller's view the groups of the last snapshot, with what brokers say themselves."""
    view = look.view
    known: Sequence[Mapping[str, Any]] = view.get("groups") or () if view is not None else _remembered(previous)
    return sorted((_group(each, look) for each in known), key=lambda each: (each["cluster"], each["name"]))


def state_of(look: Look, cluster: str, name: str, replica: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A replica's own state, if the broker that answered at its address is that replica."""
    state = look.states.get(str(replica.get("address")))
    if state is None or (state.get("clusterName"), state.get("brokerName")) != (cluster, name):
        return None
    return state if state.get("brokerId") in (None, replica.get("brokerId")) else None


def _group(group: Mapping[str, Any], look: Look) -> dict[str, Any]:
    cluster, name = str(group["clusterName"]), str(group["brokerName"])
    master_id = group.get("masterBrokerId")
    is_fixed = group.get("kind") == "fixed"
    in_sync = _own_set(group, look) if is_fixed else list(group.get("syncStateSet") or [])
    replicas = [
        _replica(replica, state_of(look, cluster, name, replica), in_sync)
        for replica in sorted(group["replicas"], key=lambda each: each["brokerId"])
    ]
    _fill_gaps(replicas, master_id)
    states = {
        each["brokerId"]: state
        for each in group["replicas"]
        if (state := state_of(look, cluster, name, each)) is not None
    }
    return {
        "cluster": cluster,
        "name": name,
        "kind": "fixed" if is_fixed else "controllers",
        "master_id": whole(master_id),
        "master_epoch": whole(group.get("masterEpoch")),
        "sync_state_set": sorted(in_sync),
        "sync_state_set_epoch": whole(group.get("syncStateSetEpoch")),
        "quorum": _quorum(states.get(master_id)),
        "weaknesses": sorted({str(each) for state in states.values() for each in _list(state.get("weaknesses"))}),
        **waiting(states.get(master_id)),
        "replicas": replicas,
    }


def _own_set(group: Mapping[str, Any], look: Look) -> list[int]:
    """With fixed roles the set is the master's own, and only it tells."""
    for each in group["replicas"]:
        if each["brokerId"] == group.get("masterBrokerId"):
            state = state_of(look, str(group["clusterName"]), str(group["brokerName"]), each) or {}
            return [broker_id for value in _list(state.get("syncStateSet")) if (broker_id := whole(value)) is not None]
    return []


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _quorum(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What an acknowledgement means at the moment, by the master's own word; None when it does not answer."""
    told = (state or {}).get("quorum")
    if not isinstance(told, Mapping):
        return None
    return {
        "kind": str(told.get("kind")),
        "copies": whole(told.get("copies")),
        "wanted_copies": whole(told.get("wantedCopies")),
        "min_copies": whole(told.get("minCopies")),
        "refused": bool(told.get("refused")),
        "downgraded": bool(told.get("downgraded")),
        "missing": [
            {
                "broker_id": broker_id,
                "reason": str(each.get("reason")),
                "stalls": bool(each.get("stalls")),
                "since_ms": whole(each.get("sinceMs")),
            }
            for each in _list(told.get("missing"))
            if isinstance(each, Mapping) and (broker_id := whole(each.get("brokerId"))) is not None
        ],
    }


def _replica(replica: Mapping[str, Any], state: Mapping[str, Any] | None, in_sync: Sequence[int]) -> dict[str, Any]:
    own: Mapping[str, Any] = state or {}
    alive = replica.get("alive")
    return {
        "id": replica["brokerId"],
        "address": replica.get("address"),
        "grpc_address": replica.get("grpcAddress"),
        "ha_address": replica.get("haAddress"),
        "alive": alive if alive is not None or state is None else True,
        "role": _role(replica, state),
        "in_sync": bool(replica["inSync"]) if replica.get("inSync") is not None else replica["brokerId"] in in_sync,
        "learner": _learner(own, replica),
        "epoch": _first(own.get("masterEpoch"), replica.get("epoch")),
        "max_offset": _first(own.get("endOffset"), replica.get("maxOffset")),
        "flushed_offset": whole(own.get("flushedOffset")),
        "confirm_offset": _first(own.get("confirmOffset"), replica.get("confirmOffset")),
        "gap_bytes": None,
        "eligible": bool(replica.get("eligible")),
        "eligibility_reason": replica.get("eligibilityReason") or "unknown: no controller answers",
        "last_heartbeat_ms": whole(replica.get("lastHeartbeatMs")),
        "epochs": [
            {"epoch": whole(each.get("epoch")), "start_offset": whole(each.get("startOffset"))}
            for each in own.get("epochs") or ()
        ],
    }


def _learner(own: Mapping[str, Any], replica: Mapping[str, Any]) -> bool | None:
    """Whether it copies without ever counting or leading; None when nobody says."""
    for told in (own.get("learner"), replica.get("learner")):
        if isinstance(told, bool):
            return told
    return None


def _role(replica: Mapping[str, Any], state: Mapping[str, Any] | None) -> str:
    """A broker's own word first; a controller's word about one that does not answer us but is alive to it."""
    if state is not None:
        return _BROKER_ROLES.get(str(state.get("role")).lower(), "fenced")
    if replica.get("alive"):
        return _BROKER_ROLES.get(str(replica.get("role")).lower(), UNREACHABLE)
    return UNREACHABLE


def _fill_gaps(replicas: Sequence[dict[str, Any]], master_id: Any) -> None:
    """How many bytes each replica lacks of its master's log; unknown when either end is."""
    master_end = next((each["max_offset"] for each in replicas if each["id"] == master_id), None)
    for each in replicas:
        if each["id"] == master_id and master_end is not None:
            each["gap_bytes"] = 0
        elif master_end is not None and each["max_offset"] is not None:
            # two answers a moment apart: a replica may have read more than the master had when it answered
            each["gap_bytes"] = max(0, master_end - each["max_offset"])


def _first(*values: Any) -> int | None:
    for value in values:
        known = whole(value)
        if known is not None:
            return known
    return None


def _remembered(previous: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The groups of an earlier snapshot in the controllers' words; what only controllers know now is unknown."""
    return [
        {
            "clusterName": group["cluster"],
            "brokerName": group["name"],
            "kind": group.get("kind"),
            "masterBrokerId": group["master_id"],
            "masterEpoch": group["master_epoch"],
            "syncStateSet": group["sync_state_set"],
            "syncStateSetEpoch": group["sync_state_set_epoch"],
            "replicas": [
                {
                    "brokerId": replica["id"],
                    "address": replica["address"],
                    "haAddress": replica["ha_address"],
                    "grpcAddress": replica["grpc_address"],
                    "alive": None,
                }
                for replica in group["replicas"]
            ],
        }
        for group in (previous or {}).get("groups") or ()
    ]
