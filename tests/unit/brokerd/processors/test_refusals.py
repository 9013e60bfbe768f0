"""A request that is refused is freed with its answer: nothing of it waits for the collector of cycles.

A request is a view of all that was read together with it. Were it held by an error's frames until the collector comes round, some
thousand refusals would hold hundreds of megabytes.
"""

from __future__ import annotations

from remoting import codes, frame
from remoting.frame import Command
from tests.fuzz.generate import Generator
from tests.support.garbage import collected
from tests.support.remoting_broker import RemotingBroker, remoting_master
from tests.unit.brokerd.sending.test_send import Broker, Connection

_SENDS = {codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE}


def hostile_requests(seed: int, count: int) -> list[Command]:
    generator, found = Generator(seed), list[Command]()
    while len(found) < count:
        thrown = generator.next()
        if thrown.opaque is not None:
            frame.decode_frames(thrown.data, found)
    return found


def hand_over(broker: RemotingBroker, request: Command) -> None:
    handler = broker.handlers.get(request.code)
    if handler is not None:
        handler(broker.peer, [request])  # type: ignore[arg-type]
        broker.turns.run()


def test_refused_requests_leave_no_cycles() -> None:
    broker = remoting_master()
    broker.topic("Fuzzed")
    for request in hostile_requests(5, 50):  # what is made once is made now
        hand_over(broker, request)
    broker.peer.answers.clear()
    with collected() as garbage:
        for request in hostile_requests(6, 3000):
            hand_over(broker, request)
        refused = sum(answer.code != codes.SUCCESS for answer in broker.peer.answers.values())
        broker.peer.answers.clear()
    assert refused > 500
    assert not garbage, {type(each) for each in garbage}


def test_refused_sends_leave_no_cycles() -> None:
    broker, connection = Broker(), Connection()
    with collected() as garbage:
        for request in hostile_requests(7, 3000):
            if request.code in _SENDS:
                request.ext["b"] = request.ext.get("b", "").replace("Fuzzed", "T")
                broker.handle(connection, [request])
                broker.acknowledger.complete()
        codes_seen = {answer.code for answer in connection.answers}
        connection.answers.clear()
    assert {codes.SUCCESS, codes.MESSAGE_ILLEGAL, codes.TOPIC_NOT_EXIST} <= codes_seen
    assert not garbage, {type(each) for each in garbage}
    broker.store.close()
