"""Heartbeats of both versions, who hears of a changed group, and that members are there before anybody is answered."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from brokerd.consuming.read_place import PullSettings
from brokerd.members.consumer_groups import ClientInfo
from remoting import codes
from remoting.frame import Command
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master

NOTICE = (codes.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def beat(broker: RemotingBroker, peer: Peer, client_id: str = "c1", *, model: Any = 1, **changes: Any) -> Command:
    subscription = {"topic": "t", "subString": changes.pop("wanted", "*"), "subVersion": changes.pop("version", 1)}
    consumer = {"groupName": "g", "messageModel": model, "subscriptionDataSet": [subscription]}
    document = {"clientID": client_id, "consumerDataSet": [consumer], **changes}
    return broker.answer(codes.HEART_BEAT, body=orjson.dumps(document), peer=peer)


def light(broker: RemotingBroker, peer: Peer, fingerprint: int) -> str:
    """A heartbeat without subscriptions; whether the broker wants them."""
    consumer = {"groupName": "g", "consumeType": "CONSUME_PASSIVELY"}
    document = {
        "clientID": "c1",
        "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": "pg"}],
        "heartbeatFingerprint": fingerprint,
        "withoutSub": True,
    }
    answer = broker.answer(codes.HEART_BEAT, body=orjson.dumps(document), peer=peer)
    assert answer.ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    return answer.ext["IS_SUB_CHANGE"]


# ---- versions


def test_without_a_fingerprint_subscriptions_are_always_wanted(broker: RemotingBroker) -> None:
    peer = Peer()
    assert beat(broker, peer).ext["IS_SUB_CHANGE"] == "true"
    assert beat(broker, peer).ext["IS_SUB_CHANGE"] == "true"


def test_with_one_they_are_wanted_once(broker: RemotingBroker) -> None:
    peer = Peer()
    assert beat(broker, peer, heartbeatFingerprint=9).ext["IS_SUB_CHANGE"] == "false"
    assert light(broker, peer, 9) == "false"
    assert light(broker, peer, 8) == "true", "the client subscribed to something else meanwhile"
    group = broker.clients.consumer_group("g")
    assert group is not None
    assert set(group.subscriptions) == {"t"}


def test_a_light_heartbeat_at_a_broker_that_knows_nothing_makes_a_member(broker: RemotingBroker) -> None:
    """After a restart or at a new master: who is missing in the list would give up all its queues."""
    peer = Peer()
    assert light(broker, peer, 9) == "true"
    answer = broker.answer(codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, peer=peer)
    assert orjson.loads(answer.body) == {"consumerIdList": ["c1"]}
    assert [each.client_id for each in broker.clients.producers("pg")] == ["c1"]
    assert broker.metadata.topic("%RETRY%g") is not None


def test_a_member_is_there_when_its_heartbeat_is_answered(broker: RemotingBroker) -> None:
    peer = Peer()
    present: list[list[str]] = []

    def respond(*_: Any, **__: Any) -> None:
        present.append([each.client_id for each in broker.clients.members("g")])

    peer.respond = respond  # type: ignore[method-assign]
    consumer = {"groupName": "g", "subscriptionDataSet": []}
    body = orjson.dumps({"clientID": "c1", "consumerDataSet": [consumer]})
    broker.send_request(codes.HEART_BEAT, body=body, peer=peer)
    assert present == [["c1"]]


# ---- who hears


def test_everybody_hears_of_whoever_comes_changes_and_goes(broker: RemotingBroker) -> None:
    one, two = Peer(1), Peer(2)
    beat(broker, one, "c1")
    assert one.notices == [NOTICE], "the newcomer too"
    beat(broker, two, "c2")
    assert (len(one.notices), len(two.notices)) == (2, 1)
    beat(broker, two, "c2", wanted="A", version=2)
    assert (len(one.notices), len(two.notices)) == (3, 2)
    beat(broker, one, "c1", wanted="*", version=1)
    assert (len(one.notices), len(two.notices)) == (3, 2), "an older subscription changes nothing"
    broker.processors.connection_closed(two)
    broker.clients.connection_closed(two)
    assert len(one.notices) == 4


def test_silent_members_go_and_are_hung_up_on(broker: RemotingBroker) -> None:
    one, two = Peer(1), Peer(2)
    beat(broker, one, "c1")
    beat(broker, two, "c2")
    broker.turns.run(119_000)
    beat(broker, two, "c2")
    broker.turns.run(2_000)
    broker.clients.expire()
    assert (one.closed, two.closed) == (True, False)
    assert two.notices == [NOTICE] * 2
    assert [each.client_id for each in broker.clients.members("g")] == ["c2"]


def test_nobody_hears_in_groups_that_do_not_want_it(broker: RemotingBroker) -> None:
    peer = Peer()
    broker.group("g", notify_ids_changed=False)
    beat(broker, peer)
    broker.group("g")
    broker.pull_settings.change(PullSettings(notify_ids_changed=False))
    beat(broker, Peer(2), "c2")
    broker.pull_settings.change(PullSettings())
    assert peer.notices == []
    beat(broker, Peer(3), "c3")
    assert peer.notices == [NOTICE]


def test_broadcasting_members_share_nothing(broker: RemotingBroker) -> None:
    peer = Peer()
    beat(broker, peer, model="BROADCASTING")
    beat(broker, Peer(2), "c2", model="BROADCASTING")
    assert peer.notices == []


def test_empty_names_of_groups_leave_nothing(broker: RemotingBroker) -> None:
    peer = Peer()
    beat(broker, peer)
    ext = {"clientID": "c1", "consumerGroup": "", "producerGroup": ""}
    assert broker.answer(codes.UNREGISTER_CLIENT, ext, peer=peer).code == 0
    assert len(broker.clients.members("g")) == 1
    assert broker.answer(codes.UNREGISTER_CLIENT, {"clientID": "c1"}, peer=peer).code == 0
    assert broker.answer(codes.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g"}, peer=peer).code == 0
    assert broker.clients.members("g") == ()
    assert broker.answer(codes.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g"}, peer=peer).code == 0


def test_clients_of_both_protocols_in_one_group(broker: RemotingBroker) -> None:
    peer = Peer()
    beat(broker, peer, wanted="A", version=7)
    broker.clients.heartbeat(ClientInfo("c2", "10.0.0.1:9", "GO", "v5", group="g", subscriptions={"t": "B"}), "grpc")
    group = broker.clients.consumer_group("g")
    assert group is not None
    assert (group.subscriptions["t"].expression, group.subscriptions["t"].version) == ("B", 7)
    ids = broker.answer(codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, peer=peer)
    assert orjson.loads(ids.body) == {"consumerIdList": ["c1"]}, "who pops takes no queue for itself"
