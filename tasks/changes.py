"""What each kind of change does to the cluster, and how it is made sure of: ask, record each node's answer, read back.

Every change here may be carried out twice: the second time finds the cluster as wanted and says UNCHANGED. An answer that did
not arrive is UNKNOWN until reading back tells; a change is reported as made only when it was read back.

`CHANGES` is the table of kinds; `tasks.operations` is the caller.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remoting import codes
from remoting.client.blocking import AdminClient, NodeOutcome
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.facts.broker_state import GroupState
from remoting.facts.cluster_view import ClusterView, GroupView, ReplicaView
from remoting.facts.words import BrokerRole, Outcome
from remoting.group_settings import ORDER_SCOPES, named_settings

READ_BACK_TIMEOUT_S = 10.0
READ_BACK_EVERY_S = 0.2

_MADE = frozenset({Outcome.CONFIRMED, Outcome.UNCHANGED})
# The change may be in the log of a broker, and nobody knows whether it stays there
_UNSURE = frozenset(
    {
        *(codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT),
        *(codes.SERVICE_NOT_AVAILABLE, codes.SLAVE_NOT_AVAILABLE, codes.SYSTEM_BUSY),
    }
)


class ChangeFailed(Exception):
    """The change was not made everywhere, or that is not known. The text says which, and what to do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Stopped(Exception):
    """Somebody asked for the end of the change; `result` says what was made until then."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__("stopped")
        self.result = result


class GoOnLater(Exception):
    """The change is longer than one task may be; its place is stored, and another task goes on."""


@dataclass(slots=True)
class Change:
    """One change at work: whom to ask, whom to tell, and the clock.

    A long one stores its `place` with `tell_place`, which says whether it is to end (`Stopped`).
    """

    client: AdminClient
    parameters: Mapping[str, Any]
    tell_node: Callable[[str, str, str], None]
    tell_progress: Callable[[int, int | None, str], object]
    now_s: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    place: Any = None  # where somebody stopped who worked at it before
    tell_place: Callable[[int, int | None, str, Any], bool] = lambda done, total, text, place: False
    outcomes: dict[str, NodeOutcome] = field(default_factory=dict)

    def record(self, outcomes: Iterable[NodeOutcome]) -> None:
        """Keep each node's word and pass it on, if it is a new one."""
        for outcome in outcomes:
            if self.outcomes.get(outcome.node) != outcome:
                self.outcomes[outcome.node] = outcome
                self.tell_node(outcome.node, outcome.outcome, outcome.detail)

    def outcomes_at(self, nodes: set[str] | None) -> list[NodeOutcome]:
        """What these nodes said so far; None: all."""
        return [outcome for node, outcome in self.outcomes.items() if nodes is None or node in nodes]

    def read_back(self, look: Callable[[], bool]) -> bool:
        """Look until it is so or the time is over. A cluster that does not answer for a moment is asked again."""
        deadline = self.now_s() + READ_BACK_TIMEOUT_S
        while True:
            try:
                if look():
                    return True
            except RequestError as error:
                if not error.retriable:
                    raise
            except (ConnectionLost, RequestTimeout):
                pass
            if self.now_s() >= deadline:
                return False
            self.pause(READ_BACK_EVERY_S)


# ---- topics


def create_topic(change: Change) -> dict[str, Any]:
    """Create a topic, or bring it to the wanted configuration, on every broker group or one of them."""
    name, queues, perm = change.parameters["name"], int(change.parameters["queues"]), int(change.parameters["perm"])
    group = change.parameters.get("group")
    attributes = _kept_attributes(change.parameters)
    answers = change.client.create_topic(name, queues, change.parameters["type"], perm, group, attributes)
    _record_some(change, answers)
    wanted = {"readQueueNums": queues, "writeQueueNums": queues, "perm": perm}

    def is_there(config: Mapping[str, Any]) -> bool:
        kept = config.get("attributes") or {}
        return wanted.items() <= {key: config.get(key) for key in wanted}.items() and attributes.items() <= kept.items()

    def is_confirmed() -> bool:
        found = change.client.topic_config(name)
        return _confirm(change, lambda node: is_there(found.get(node, {})))

    return _read_back_outcome(change, f"the topic {name}", is_confirmed)


def _kept_attributes(parameters: Mapping[str, Any]) -> dict[str, str]:
    """What a topic is to say of how it is kept; nothing of what nobody asked for."""
    attributes = {}
    if parameters.get("local_reserve_time") is not None:
        attributes["local.reserve.time"] = str(parameters["local_reserve_time"])
    if parameters.get("tier_enable") is not None:
        attributes["tier.enable"] = "true" if parameters["tier_enable"] else "false"
    if parameters.get("tier_reserve_time") is not None:
        attributes["tier.reserve.time"] = str(parameters["tier_reserve_time"])
    if parameters.get("tier_archive") is not None:
        attributes["tier.archive"] = "true" if parameters["tier_archive"] else "false"
    if parameters.get("tier_export") is not None:
        attributes["tier.export"] = parameters["tier_export"]
    return attributes


def open_gate(change: Change) -> dict[str, Any]:
    """Let ordered groups wait no more for what of a topic lies in a broker group that is gone."""
    name, group, source = (change.parameters[field] for field in ("name", "group", "source"))
    try:
        opened = change.client.open_gate(group, name, source)
        change.record([NodeOutcome(group, Outcome.CONFIRMED if opened else Outcome.UNCHANGED)])
    except RequestError as error:
        if error.code not in _UNSURE:
            change.record([NodeOutcome(group, Outcome.REFUSED, error.message)])
            raise ChangeFailed("gate-refused", f"The broker refused: {error.message}") from error
        change.record([NodeOutcome(group, Outcome.UNKNOWN, error.message)])
    except (ConnectionLost, RequestTimeout) as error:
        change.record([NodeOutcome(group, Outcome.UNKNOWN, str(error))])

    def is_confirmed() -> bool:
        return _confirm(change, lambda node: not change.client.open_gate(group, name, source))

    return _read_back_outcome(change, f"that {name} does not wait for {source}", is_confirmed)


def delete_topic(change: Change) -> dict[str, Any]:
    """Delete a topic on every broker group."""
    name = change.parameters["name"]
    groups = {each.broker_name for each in change.client.cluster_view().groups}
    answers = change.client.delete_topic(name)
    change.record(answer if answer.node in groups else _route_note(answer) for answer in answers)

    def is_confirmed() -> bool:
        found = change.client.topic_config(name)
        return _confirm(change, lambda node: node not in found, nodes=groups)

    return _read_back_outcome(change, f"the topic {name}", is_confirmed, nodes=groups)


def _route_note(answer: NodeOutcome) -> NodeOutcome:
    """A controller that did not hear of a deletion: its route to the topic ends by itself, so nothing failed."""
    return NodeOutcome(answer.node, Outcome.UNKNOWN, f"{answer.detail}; it disappears with the brokers' next report")


# ---- consumer groups


def create_group(change: Change) -> dict[str, Any]:
    """Create a consumer group, or bring it to the wanted configuration, on every broker group."""
    name, fifo = change.parameters["name"], bool(change.parameters.get("fifo", False))
    retry_max_times = int(change.parameters.get("retry_max_times", 16))
    settings = {"order_scope": ORDER_SCOPES[0], **named_settings(change.parameters)}
    _record_some(change, change.client.create_group(name, fifo, retry_max_times, settings))

    def is_confirmed() -> bool:
        found = _consumer_group(change.client, name)
        same = {node for node, each in found.items() if (each.fifo, each.retry_max_times) == (fifo, retry_max_times)}
        return _confirm(change, same.__contains__)

    return _read_back_outcome(change, f"the consumer group {name}", is_confirmed)


def update_group(change: Change) -> dict[str, Any]:
    """Change those settings of a consumer group that are named, on every broker group."""
    name, settings = change.parameters["name"], named_settings(change.parameters)
    _record_some(change, change.client.change_group(name, settings))

    def is_so(group: GroupState) -> bool:
        return all(getattr(group, each) == value for each, value in settings.items())

    def is_confirmed() -> bool:
        found = _consumer_group(change.client, name)
        return _confirm(change, lambda node: node in found and is_so(found[node]))

    return _read_back_outcome(change, f"the settings of consumer group {name}", is_confirmed)


def delete_group(change: Change) -> dict[str, Any]:
    """Delete a consumer group and its offsets on every broker group."""
    name = change.parameters["name"]
    change.record(change.client.delete_group(name))

    def is_confirmed() -> bool:
        found = _consumer_group(change.client, name)
        return _confirm(change, lambda node: node not in found)

    return _read_back_outcome(change, f"the consumer group {name}", is_confirmed)


def _consumer_group(client: AdminClient, name: str) -> dict[str, GroupState]:
    """Broker group -> its entry of the consumer group; without it, no key."""
    found = {}
    for broker_name, address in client.masters().items():
        for each in client.broker_state(address).groups:
            if each.name == name:
                found[broker_name] = each
    return found


# ---- transactions


def decide_given_up(change: Change) -> dict[str, Any]:
    """Commit a half message that was given up, or roll it back, and see that this is what the broker says of it."""
    group, offset, decision = (
        change.parameters["group"],
        int(change.parameters["offset"]),
        change.parameters["decision"],
    )
    try:
        change.client.end_given_up(group, offset, decision, change.parameters["decided_by"])
        change.record([NodeOutcome(group, Outcome.CONFIRMED, decision)])
    except RequestError as error:
        if error.code not in _UNSURE:
            change.record([NodeOutcome(group, Outcome.REFUSED, error.message)])
            raise ChangeFailed("decision-refused", f"The broker refused: {error.message}") from error
        change.record([NodeOutcome(group, Outcome.UNKNOWN, error.message)])
    except (ConnectionLost, RequestTimeout) as error:
        change.record([NodeOutcome(group, Outcome.UNKNOWN, str(error))])

    def is_confirmed() -> bool:
        items = change.client.given_up(group, offset + 1, 1).items
        same = any((each.offset, each.decision) == (offset, decision) for each in items)
        return _confirm(change, lambda node: same)

    return _read_back_outcome(change, f"the {decision} of what was given up at offset {offset}", is_confirmed)


# ---- elections


def elect_master(change: Change) -> dict[str, Any]:
    """Make a chosen replica the master of its group and see every replica follow."""
    cluster, group = change.parameters["cluster"], change.parameters["group"]
    chosen = int(change.parameters["broker_id"])
    before = _group(change.client.cluster_view(), cluster, group)
    if before.master_broker_id == chosen:
        change.record([NodeOutcome(f"replica {chosen}", Outcome.UNCHANGED, "it is the master already")])
        return {"master_id": chosen, "master_epoch": before.master_epoch}
    change.tell_progress(0, 2, f"asking the controllers to elect replica {chosen}")
    try:
        change.client.elect_master(cluster, group, chosen)
    except RequestError as error:
        change.record([NodeOutcome(f"replica {chosen}", Outcome.REFUSED, error.message)])
        raise ChangeFailed("election-refused", f"The controllers refused: {error.message}") from error
    except (ConnectionLost, RequestTimeout) as error:
        change.record([NodeOutcome(f"replica {chosen}", Outcome.UNKNOWN, str(error))])
    change.tell_progress(1, 2, "waiting until every replica follows")
    latest = before

    def is_confirmed() -> bool:
        nonlocal latest
        latest = _group(change.client.cluster_view(), cluster, group)
        if latest.master_broker_id != chosen:
            return False
        outcomes = [_after_election(change.client, latest, replica, chosen) for replica in latest.replicas]
        change.record(outcomes)
        return all(outcome.outcome != Outcome.UNKNOWN for outcome in outcomes)

    done = change.read_back(is_confirmed)
    if latest.master_broker_id != chosen:
        raise ChangeFailed(
            "election-unknown",
            f"Replica {chosen} did not become the master within {READ_BACK_TIMEOUT_S:.0f} s; the controllers name "
            f"{latest.master_broker_id}. Look at the group before you try again.",
        )
    if change.outcomes[f"replica {chosen}"].outcome not in _MADE:
        raise ChangeFailed(
            "election-unknown",
            f"The controllers made replica {chosen} the master, but it did not say within {READ_BACK_TIMEOUT_S:.0f} s "
            "that it serves. Look at its log.",
        )
    change.tell_progress(2, 2, "done" if done else "done; a replica does not follow yet")
    return {"master_id": chosen, "master_epoch": latest.master_epoch}


def _group(view: ClusterView, cluster: str, group: str) -> GroupView:
    for each in view.groups:
        if (each.cluster_name, each.broker_name) == (cluster, group):
            return each
    raise ChangeFailed("group-not-found", f"The controllers know no group {group} in the cluster {cluster}.")


def _after_election(client: AdminClient, group: GroupView, replica: ReplicaView, master_id: int) -> NodeOutcome:
    """What one replica made of the election, by its own word."""
    node = f"replica {replica.broker_id}"
    if not replica.alive or replica.address is None:
        return NodeOutcome(node, Outcome.NOT_ATTEMPTED, "it is not alive; it follows when it comes back")
    try:
        state = client.broker_state(replica.address)
    except LogboomError as error:
        return NodeOutcome(node, Outcome.UNKNOWN, str(error))
    wanted = BrokerRole.MASTER if replica.broker_id == master_id else BrokerRole.REPLICA
    if (state.role, state.master_epoch) == (wanted, group.master_epoch):
        return NodeOutcome(node, Outcome.CONFIRMED, f"{wanted} in epoch {state.master_epoch}")
    return NodeOutcome(node, Outcome.UNKNOWN, f"it says {state.role} in epoch {state.master_epoch}")


# ---- what they share


def _record_some(change: Change, answers: list[NodeOutcome]) -> None:
    """Record the answers to a creation; there is at least one, unless there is nobody to ask."""
    if not answers:
        group = change.parameters.get("group")
        what = f"There is no broker group {group}." if group else "No broker group is registered."
        raise ChangeFailed("no-broker-group", f"{what} Nothing was changed; try again when brokers are up.")
    change.record(answers)


def _confirm(change: Change, is_so_at: Callable[[str], bool], nodes: set[str] | None = None) -> bool:
    """Settle what is known by what was read: an unknown outcome that is so is confirmed. True when nothing is open."""
    open_nodes = False
    for outcome in change.outcomes_at(nodes):
        if outcome.outcome in (Outcome.REFUSED, Outcome.NOT_ATTEMPTED):
            continue
        if not is_so_at(outcome.node):
            open_nodes = True
        elif outcome.outcome == Outcome.UNKNOWN:
            change.record([NodeOutcome(outcome.node, Outcome.CONFIRMED, "the answer was lost; read back")])
    return not open_nodes


def _read_back_outcome(
    change: Change, what: str, is_confirmed: Callable[[], bool], nodes: set[str] | None = None
) -> dict[str, Any]:
    """Read back, then say how it ended at all nodes; raises ChangeFailed when it is not made everywhere."""
    if not change.read_back(is_confirmed):
        for each in change.outcomes_at(nodes):
            if each.outcome in _MADE:
                change.record([NodeOutcome(each.node, Outcome.UNKNOWN, "it agreed, but reading back does not show it")])
    outcomes = change.outcomes_at(nodes)
    bad = [each for each in outcomes if each.outcome not in _MADE]
    if bad:
        told = "; ".join(f"{each.node}: {each.outcome} {each.detail}".rstrip() for each in bad[:5])
        refused_only = all(each.outcome == Outcome.REFUSED for each in bad)
        code = "change-refused" if refused_only else "change-incomplete"
        advice = "" if refused_only else " Asking again is safe: what is as wanted stays as it is."
        raise ChangeFailed(code, f"Not everywhere made: {what}. {told}.{advice}")
    return {"outcomes": dict(Counter(each.outcome for each in outcomes))}


CHANGES: Mapping[str, Callable[[Change], dict[str, Any]]] = {
    "topic.create": create_topic,
    "topic.update": create_topic,
    "topic.delete": delete_topic,
    "topic.open-gate": open_gate,
    "group.create": create_group,
    "group.update": update_group,
    "group.delete": delete_group,
    "transaction.decide": decide_given_up,
    "election.elect": elect_master,
}


def error_code(error: LogboomError) -> str:
    """A stable word for an error of the cluster."""
    if isinstance(error, RequestError):
        return "cluster-unavailable" if error.retriable else "cluster-refused"
    return "cluster-unavailable" if isinstance(error, ConnectionLost | RequestTimeout) else "cluster-error"
