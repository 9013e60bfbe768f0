"""A half message is a message of its topic: of those who say that they are of its producers' group, only who may publish the
topic is asked about it, and so sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import orjson

from brokerd.members.consumer_groups import ClientInfo
from brokerd.members.registry import ClientRegistry
from brokerd.processors.rights import may_publish
from brokerd.proxy.methods.base import user_of
from remoting import codes
from remoting.access.component import INNER_USER
from remoting.access.model import ALLOW, CUSTOM, SUPER, AccessState, Entry, User, resource
from remoting.guarding.guard import AccessSettings, Guard
from remoting.record.codec import decode_record
from tests.security.people import Listener, Person, send
from tests.support.cluster import Cluster

GROUP, OWN, FOREIGN = "half-producers", "half-own", "half-foreign"
_TIMES = 6  # of which a second producer would be asked three
_LIMIT_S = 30


def test_a_stranger_in_a_producer_group_is_not_asked(secured: Cluster) -> None:
    for topic in (OWN, FOREIGN):
        secured.admin.create_topic(topic, 1)
    eve = Person(secured, "eve", {f"Topic:{OWN}": ("Pub",)})
    master = secured.broker_addresses[secured.master()]
    stranger, producer = Listener(master, eve.identity), Listener(master, secured.identity)
    heartbeat = orjson.dumps({"clientID": "p", "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []})
    try:
        for each in (stranger, producer):
            each.say(codes.HEART_BEAT, {}, heartbeat)
            assert [answer.code for answer in each.hear(10)] == [codes.SUCCESS], "official clients send this"
        for topic in (OWN, OWN, FOREIGN, FOREIGN):  # two in a row, as producers are asked in turn
            send(secured, topic, f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{topic}\x02")
        asked_stranger: list[str] = []
        asked_producer: list[str] = []
        until = time.monotonic() + _LIMIT_S
        while (asked_producer.count(FOREIGN) < _TIMES or OWN not in asked_stranger) and time.monotonic() < until:
            asked_stranger += topics_of(stranger)
            asked_producer += topics_of(producer)
        assert asked_producer.count(FOREIGN) >= _TIMES
        assert set(asked_stranger) == {OWN}
    finally:
        stranger.close()
        producer.close()


def topics_of(listener: Listener) -> Sequence[str]:
    """Of the messages that somebody is asked about."""
    return [
        decode_record(each.body).topic for each in listener.hear(0.05) if each.code == codes.CHECK_TRANSACTION_STATE
    ]


def test_a_stranger_who_publishes_what_a_group_is_named_like_is_not_asked_over_grpc() -> None:
    """Producers of gRPC have no groups: a topic of that name stands for one."""
    guard = Guard(AccessSettings(authentication=True, authorization=True), "c", [b"s" * 32], lambda: 0)
    allow = Entry(resource(f"Topic:{GROUP}"), ("Pub",), ALLOW)
    guard.update(AccessState(1, {"eve": User("eve", ""), "root": User("root", "", SUPER)}, {"eve": {CUSTOM: (allow,)}}))
    clients = ClientRegistry(lambda: 0, lambda: 0, may_publish(guard))
    streams: dict[str, Any] = {}
    for name in ("eve", "root", "", INNER_USER):
        streams[name] = SimpleNamespace(is_open=True)
        call: Any = SimpleNamespace(metadata={"authorization": f"x Credential={name}, Signature=00"})
        info = ClientInfo(name, "10.0.0.1:5", "JAVA", "5", producer_topics=frozenset({GROUP}), user=user_of(call))
        clients.heartbeat(info, object(), streams[name])
    assert clients.producer_streams(GROUP, FOREIGN) == [streams["root"]]
    assert clients.producer_streams(GROUP, GROUP) == [streams["eve"], streams["root"]]
