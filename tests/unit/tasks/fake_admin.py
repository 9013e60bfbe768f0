"""A cluster of broker groups as `AdminClient` shows it: changes land in tables, answers may be lost or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from remoting import codes
from remoting.client.blocking import NodeOutcome
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.facts.broker_state import BrokerState, GroupState
from remoting.facts.cluster_view import ClusterView, GroupView, ReplicaView
from remoting.facts.given_up import GivenUp, GivenUpPage
from remoting.facts.words import BrokerRole, Outcome


class FakeAdmin:
    """`lost`: groups that make the change but whose answer is lost; `deaf`: they do not even make it; `refusing`; `headless`."""

    def __init__(self, *groups: str) -> None:
        self.groups = list(groups)
        self.topics: dict[str, dict[str, dict[str, Any]]] = {group: {} for group in groups}
        self.consumer_groups: dict[str, dict[str, GroupState]] = {group: {} for group in groups}
        self.lost: set[str] = set()
        self.deaf: set[str] = set()
        self.refusing: dict[str, str] = {}
        self.headless: set[str] = set()
        self.master_id = 1
        self.epoch = 3
        self.dead: set[int] = set()
        self.slow: set[int] = set()
        self.election: Exception | None = None
        self.election_happens = True
        self.controllers = {f"n{n}": (f"127.0.0.1:{9876 + n}", "voter") for n in range(3)}
        self.controller_leader = "n0"
        self.retired: list[str] = []
        self.calls: list[str] = []
        self.reads_fail = 0
        self.refused: set[str] = set()
        self.gates_opened: set[tuple[str, str, str]] = set()
        self.given_up_messages = [
            GivenUp(
                offset=each,
                key=f"K{each}",
                producer_group="pg",
                topic="T",
                size=9,
                begun_at_ms=0,
                given_up_at_ms=9,
                checks=15,
            )
            for each in range(3)
        ]

    def given_up(self, group: str, before: int | None = None, count: int = 100) -> GivenUpPage:
        self._read()
        found = [each for each in reversed(self.given_up_messages) if before is None or each.offset < before]
        return GivenUpPage(items=tuple(found[:count]), before=None)

    def end_given_up(self, group: str, offset: int, decision: str, decided_by: str) -> None:
        self.calls.append(f"{decision} {offset} by {decided_by}")
        known = self.given_up_messages[offset]
        if known.decision not in (None, decision):
            raise RequestError(codes.ILLEGAL_OPERATION, f"{known.decided_by} decided {known.decision} about it already")
        if group not in self.deaf:
            self.given_up_messages[offset] = replace(known, decision=decision, decided_by=decided_by)
        if group in self.lost | self.deaf:
            raise RequestError(codes.FLUSH_SLAVE_TIMEOUT, "it is not known whether the transaction is ended")

    def open_gate(self, group: str, topic: str, source: str) -> bool:
        if group in self.refused:
            raise REFUSAL
        is_new = (group, topic, source) not in self.gates_opened
        self.gates_opened.add((group, topic, source))
        if is_new and group in self.lost:
            raise TIMEOUT
        return is_new

    # ---- reading

    def cluster_view(self) -> ClusterView:
        self._read()
        return ClusterView(groups=tuple(self._group(name) for name in self.groups))

    def _group(self, name: str) -> GroupView:
        return GroupView(
            cluster_name="DefaultCluster",
            broker_name=name,
            master_broker_id=None if name in self.headless else self.master_id,
            master_epoch=self.epoch,
            replicas=tuple(
                ReplicaView(broker_id=each, address=f"{name}:{each}", alive=each not in self.dead) for each in (1, 2, 3)
            ),
        )

    def masters(self) -> dict[str, str]:
        self._read()
        return {group: f"{group}:{self.master_id}" for group in self.groups if group not in self.headless}

    def broker_state(self, address: str) -> BrokerState:
        self._read()
        group, _, broker_id = address.rpartition(":")
        state = BrokerState(
            cluster_name="DefaultCluster",
            broker_name=group,
            broker_id=int(broker_id),
            role=BrokerRole.MASTER if int(broker_id) == self.master_id else BrokerRole.REPLICA,
            master_epoch=self.epoch,
            groups=tuple(self.consumer_groups[group].values()),
        )
        is_slow = int(broker_id) in self.slow
        return replace(state, role=BrokerRole.FENCED, master_epoch=self.epoch - 1) if is_slow else state

    def topic_config(self, name: str) -> dict[str, dict[str, Any]]:
        self._read()
        return {group: table[name] for group, table in self.topics.items() if name in table}

    def _read(self) -> None:
        if self.reads_fail:
            self.reads_fail -= 1
            raise ConnectionLost("read failed")

    def controller_members(self) -> dict[str, Any]:
        self._read()
        members = [{"id": each, "address": address, "role": role} for each, (address, role) in self.controllers.items()]
        return {"leaderId": self.controller_leader, "members": members, "retired": self.retired}

    # ---- changing

    def add_controller(self, controller_id: str, address: str) -> dict[str, Any]:
        return self._controller(
            f"add {controller_id}", lambda: self.controllers.update({controller_id: (address, "learner")})
        )

    def promote_controller(self, controller_id: str) -> dict[str, Any]:
        address, _ = self.controllers[controller_id]
        return self._controller(
            f"promote {controller_id}", lambda: self.controllers.update({controller_id: (address, "voter")})
        )

    def remove_controller(self, controller_id: str) -> dict[str, Any]:
        def remove() -> None:
            del self.controllers[controller_id]
            self.retired.append(controller_id)

        return self._controller(f"remove {controller_id}", remove)

    def transfer_controller_leader(self, controller_id: str) -> dict[str, str]:
        self._controller(f"transfer {controller_id}", lambda: setattr(self, "controller_leader", controller_id))
        return {"controllerLeaderId": controller_id}

    def _controller(self, call: str, make: Callable[[], object]) -> dict[str, Any]:
        self.calls.append(call)
        if self.election_happens:
            make()
        if self.election is not None:
            raise self.election
        return {}

    def create_topic(
        self,
        name: str,
        queues: int = 8,
        message_type: str = "NORMAL",
        perm: int = 6,
        group: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> list[NodeOutcome]:
        config: dict[str, Any] = {"readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
        if attributes:
            config["attributes"] = dict(attributes)
        return [self._put(each, self.topics, name, config) for each in self.groups if group in (None, each)]

    def delete_topic(self, name: str) -> list[NodeOutcome]:
        outcomes = [self._put(each, self.topics, name, None) for each in self.groups]
        return [*outcomes, NodeOutcome("127.0.0.1:9878", Outcome.UNKNOWN, "its route may linger: no answer")]

    def change_group(self, name: str, settings: Mapping[str, Any]) -> list[NodeOutcome]:
        changed = {group: replace(table[name], **settings) for group, table in self.consumer_groups.items()}
        return [self._put(each, self.consumer_groups, name, changed[each]) for each in self.groups]

    def create_group(
        self, name: str, fifo: bool = False, retry_max_times: int = 16, settings: Mapping[str, Any] | None = None
    ) -> list[NodeOutcome]:
        config = GroupState(name=name, fifo=fifo, retry_max_times=retry_max_times, **(settings or {}))
        return [self._put(each, self.consumer_groups, name, config) for each in self.groups]

    def delete_group(self, name: str) -> list[NodeOutcome]:
        return [self._put(each, self.consumer_groups, name, None) for each in self.groups]

    def _put(self, group: str, table: dict[str, dict[str, Any]], name: str, config: Any) -> NodeOutcome:
        self.calls.append(group)
        if group in self.headless:
            return NodeOutcome(group, Outcome.NOT_ATTEMPTED, "the group has no master at the moment")
        if group in self.refusing:
            return NodeOutcome(group, Outcome.REFUSED, self.refusing[group])
        if group in self.deaf:
            return NodeOutcome(group, Outcome.UNKNOWN, "no answer")
        unchanged = table[group].get(name) == config
        if config is None:
            table[group].pop(name, None)
        else:
            table[group][name] = config
        if group in self.lost:
            return NodeOutcome(group, Outcome.UNKNOWN, "no answer")
        return NodeOutcome(group, Outcome.UNCHANGED if unchanged else Outcome.CONFIRMED)

    def elect_master(self, cluster: str, group: str, broker_id: int) -> dict[str, str]:
        self.calls.append(f"elect {broker_id}")
        if isinstance(self.election, RequestError):
            raise self.election
        if self.election_happens:
            self.master_id, self.epoch = broker_id, self.epoch + 1
        if self.election is not None:
            raise self.election
        return {"masterBrokerId": str(broker_id), "masterEpoch": str(self.epoch)}


REFUSAL = RequestError(codes.CONTROLLER_ELECT_MASTER_FAILED, "replica 3 is not in the sync-state set")
TIMEOUT = RequestTimeout("no answer within 10000 ms")
