"""Clients that change the cluster itself: the owner of a topic that comes and goes, and an administrator of the controllers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.service import MetadataService
from brokerd.replication.controllers.session import SessionRequest
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import RequestError
from tests.sim.broker import CLUSTER, GROUP
from tests.sim.clients import SURE_TIMEOUT_MS, Client, Reply, make_draft
from tests.sim.history import TopicLife
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.controller import SimController


class TopicOwner(Client):
    """Makes a topic, sends to it, deletes it, makes it again: what was in the old one must not be in the new one."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self.topic = TopicLife(name=f"D-{name}")
        self.history.topics[self.topic.name] = self.topic
        self._sends_left = 0

    def step(self) -> None:
        topic = self.topic
        if not topic.exists:
            self._create()
        elif self._sends_left:
            self._sends_left -= 1
            self._send()
        else:
            self._delete()

    def _create(self) -> None:
        broker, topic = self.broker, self.topic
        topic.is_settled = False

        def done(error: RequestError | None) -> None:
            topic.exists = topic.is_settled = True
            topic.generation += 1
            topic.sent.clear()
            topic.acknowledged.clear()
            self._sends_left = self.rng.choice((0, 1, 3))
            self.world.note(f"{topic.name} exists, generation {topic.generation}")

        self._change("create", lambda reply: broker.core.metadata.put_topic(TopicConfig(topic.name, 1, 1), reply), done)

    def _delete(self) -> None:
        broker, topic = self.broker, self.topic
        topic.is_settled = False

        def done(error: RequestError | None) -> None:
            topic.exists, topic.is_settled = False, True
            self.world.note(f"{topic.name} is deleted")

        self._change("delete", lambda reply: broker.core.metadata.delete_topic(topic.name, reply), done)

    def _change(self, operation: str, run: Callable[[Reply], None], done: Callable[[Any], None]) -> None:
        def answered(answer: tuple[RequestError | None] | None) -> None:
            if answer is None:
                self.history.count(operation, "unknown")
                self.move()
            elif answer[0] is not None:
                self.history.count(operation, "failed")
                self.move()
            else:
                self.history.count(operation, "ok")
                done(None)
            self.again(5, 80)

        self.call(self.broker, lambda reply: run(lambda error: reply((error,))), answered, SURE_TIMEOUT_MS)

    def _send(self) -> None:
        broker, topic = self.broker, self.topic
        body = f"{topic.name}/{topic.generation}/{self._sends_left}/{len(topic.sent)}".encode()
        topic.sent[body] = topic.sent.get(body, 0) + 1
        topic.is_settled = False

        def answered(outcomes: Sequence[SendOutcome] | None) -> None:
            topic.is_settled = True
            if outcomes is not None and outcomes[0].status is PutStatus.PUT_OK:
                self.history.count("send to a short-lived topic", "ok")
                topic.acknowledged[body] = outcomes[0].queue_id, outcomes[0].queue_offset
            else:
                self.history.count("send to a short-lived topic", "unknown" if outcomes is None else "failed")
                self.move()
            self.again(5, 60)

        drafts = [make_draft(topic.name, 0, body)]
        self.call(broker, lambda reply: broker.take_send(drafts, reply), answered, SURE_TIMEOUT_MS)


class Maker(Client):
    """Makes something of the group's metadata, a topic or a group of consumers, until a master says that it is there:
    `is_made`."""

    def __init__(
        self, world: World, cluster: Any, name: str, make: Callable[[MetadataService, Callable[[Any], None]], None]
    ) -> None:
        super().__init__(world, cluster, name)
        self.is_made = False
        self._make = make

    def step(self) -> None:
        broker = self.broker

        def answered(answer: tuple[RequestError | None] | None) -> None:
            if answer is None or answer[0] is not None:
                self.move()
                self.again(20, 100)
            else:
                self.is_made = True

        def run(reply: Reply) -> None:
            self._make(broker.core.metadata, lambda error: reply((error,)))

        self.call(broker, run, answered, SURE_TIMEOUT_MS)

    def stop(self) -> None:
        """Whoever waits for it may still be there."""


class Administrator(Client):
    """Designates masters now and then, and once in a while has a broken machine replaced."""

    _token = 1 << 40

    def step(self) -> None:
        self.again(300, 1500)
        if self.cluster.injector.mood == "rot":
            return  # to make a damaged replica master would be to rely on it alone
        controller = self.cluster.leader() if self.rng.random() < 0.7 else self.rng.choice(self.cluster.controllers)
        if controller is None:
            return
        choice = self.rng.random()
        if choice < 0.3 and self.cluster.changes_members:
            self._change_members(controller)
            return
        if choice < 0.45:
            self._transfer(controller)
            return
        broker = self.rng.choice(self.cluster.brokers)
        broker_id = self.cluster.id_of(broker)
        if broker_id is None or not controller.is_up:
            return
        self._token += 1
        ext = {
            "clusterName": CLUSTER,
            "brokerName": GROUP,
            "brokerId": str(broker_id),
            "designateElect": "true",
            "invokeTime": "0",
        }
        request = SessionRequest(self._token, "", codes.CONTROLLER_ELECT_MASTER, ext)
        self.ask(controller, request, "designate")

    def _change_members(self, controller: SimController) -> None:
        """Bring a controller in that waits, or let one go when there are more than three."""
        if not controller.is_up:
            return
        known = controller.node.core.configuration
        waiting = [each for each in self.cluster.controllers if each.name not in (*known.members, *known.retired)]
        kind, name = "", ""
        if known.learners and self.rng.random() < 0.7:
            kind, name = "promote", self.rng.choice(sorted(known.learners))
        elif waiting and (len(known.voters) <= 3 or self.rng.random() < 0.5):
            kind, name = self.rng.choice(("add-voter", "add-learner")), self.rng.choice(waiting).name
        elif len(known.voters) > 3:
            kind, name = "remove", self.rng.choice(sorted(known.voters))
        if kind:
            changes = [{"kind": kind, "id": name, "address": f"{name}:9876"}]
            self._ask_controller(
                controller, codes.CHANGE_CONTROLLER_MEMBERS, {}, kind, orjson.dumps({"changes": changes})
            )

    def _transfer(self, controller: SimController) -> None:
        target = self.rng.choice(self.cluster.controllers).name
        self._ask_controller(controller, codes.TRANSFER_CONTROLLER_LEADER, {"controllerId": target}, "transfer")

    def _ask_controller(
        self, controller: SimController, code: int, ext: dict[str, str], operation: str, body: bytes = b""
    ) -> None:
        self._token += 1
        self.ask(controller, SessionRequest(self._token, "", code, ext, body), operation)

    def clean(self, broker_id: int) -> None:
        """Ask every controller to forget a replica; only the leader does."""
        for controller in self.cluster.controllers:
            self._token += 1
            ext = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerControllerIdsToClean": str(broker_id)}
            self.ask(controller, SessionRequest(self._token, "", codes.CLEAN_BROKER_DATA, ext), "clean")

    def ask(self, controller: Any, request: SessionRequest, operation: str) -> None:
        network = self.cluster.network

        def answer(code: int, ext: dict[str, str], body: bytes) -> None:
            outcome = "ok" if code == codes.SUCCESS else "failed"
            self.world.note(f"{operation} at {controller.name}: {outcome}")
            network.reply(controller, self, lambda: self.history.count(operation, outcome))

        network.send(self, controller, lambda: controller.handle(self, self.life, request, answer))
