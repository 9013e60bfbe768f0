"""Leases, and what survives a change of master."""

from __future__ import annotations

from typing import Any

import orjson

from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import AckStatus, PoppedMessage, PopStatus
from brokerd.store.put_status import PutStatus
from remoting.record.codec import decode_record
from tests.support.pop_broker import PopBroker, master
from tests.support.turns import Turns

OK, INVALID, FAILED = AckStatus.OK, AckStatus.INVALID_HANDLE, AckStatus.FAILED


# ---- leases


def test_a_lease_lasts_while_its_client_lives() -> None:
    broker = master()
    broker.alive.add("c1")
    broker.send("a")
    message = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages[0]
    broker.turns.run(1_000_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.pop_service.counters.renewed >= 15
    assert broker.ack(message) == [OK], "the handle that the client has stays valid"


def test_a_dead_clients_lease_ends_soon() -> None:
    broker = master()
    broker.alive.add("c1")
    broker.send("a", "b")
    broker.receive(1, client_id="c1", auto_renew=True, invisible_time_ms=60_000)
    broker.receive(1, client_id="c2", auto_renew=True, invisible_time_ms=60_000)
    broker.alive.discard("c1")
    broker.pop_service.client_gone("c1")
    broker.turns.run(999)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    broker.turns.run(1)
    assert broker.receive().bodies == ["a"]


def lease_of_a_client_that_went() -> tuple[PopBroker, PoppedMessage]:
    broker = master()
    broker.alive.add("c1")
    broker.send("a")
    message = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages[0]
    broker.alive.discard("c1")
    broker.pop_service.client_gone("c1")
    return broker, message


def test_the_handle_of_a_lease_that_ended_is_worth_nothing_while_its_message_waits() -> None:
    broker, message = lease_of_a_client_that_went()
    broker.turns.run(1000)
    broker.alive.add("c1")
    assert broker.ack(message) == [INVALID]
    assert broker.change(message, 5000).status == INVALID
    assert broker.receive().bodies == ["a"]


def test_a_client_that_is_back_in_time_keeps_its_lease() -> None:
    broker, message = lease_of_a_client_that_went()
    broker.turns.run(500)
    broker.alive.add("c1")
    broker.turns.run(200_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.ack(message) == [OK]


def test_a_lease_whose_renewal_is_late_is_one() -> None:
    """Who is told that its handle is over gives up its message, which nobody else gets as long as that client lives."""
    broker = master()
    broker.alive.add("c1")
    broker.send("a", "b")
    first, second = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages
    broker.turns.run(59_990)
    broker.turns.set_wall_clock(20)  # which runs a little faster than the loop's clock, or the loop is busy
    assert broker.ack(first) == [OK]
    assert broker.change(second, 2000).status == OK
    broker.turns.run(2010)
    assert broker.receive().bodies == ["b"]
    assert broker.pop_service.ledger.in_flight("g") == 1


def test_a_lease_has_a_limit() -> None:
    broker = master(lease_limit_ms=100_000)
    broker.alive.add("c1")
    broker.send("a")
    broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000)
    broker.turns.run(119_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    broker.turns.run(1000)
    assert broker.receive().bodies == ["a"]


def test_what_nobody_got_is_not_leased_to_who_asked_for_it() -> None:
    """It lives, and does not know of the messages: they would be its own for as long as it does."""
    broker = master()
    broker.alive.add("c1")
    broker.send("a")
    broker.log.acknowledges = False
    refused = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000)
    broker.log.acknowledge(PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert refused.outcome.status == PopStatus.REFUSED
    broker.log.acknowledges = True
    broker.turns.run(1000)
    assert broker.receive().bodies == ["a"]


def test_a_postponed_lease_is_none_any_more() -> None:
    broker = master()
    broker.alive.add("c1")
    broker.send("a")
    message = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages[0]
    assert broker.change(message, 2000).status == OK
    broker.turns.run(2000)
    assert broker.receive().bodies == ["a"]


# ---- master changes


def test_messages_come_back_in_time_though_the_old_masters_clock_was_an_hour_ahead() -> None:
    hour_ms = 3_600_000
    broker = master()
    broker.send("a", "b")
    taken = broker.receive(2, invisible_time_ms=5000).messages
    postponed = broker.change(taken[1], 8000).receipt_handle
    other = PopBroker(broker.log.copy(), Turns(start_ms=broker.turns.wall_ms() - hour_ms)).become_master()
    assert other.ack(postponed) == [OK], "a handle that the old master gave out stays valid"
    other.turns.run(4999)
    assert other.receive().outcome.status == PopStatus.NOTHING
    other.turns.run(1)
    assert other.receive().bodies == ["a"]


def test_a_new_master_goes_on() -> None:
    broker = master()
    broker.send(*"abcdef")
    taken = broker.receive(4, invisible_time_ms=5000).messages
    assert broker.ack(taken[0], taken[2]) == [OK, OK]
    changed = broker.change(taken[3], 20_000).receipt_handle
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert other.ack(taken[0]) == [OK], "it is asked again"
    assert other.ack(taken[3]) == [INVALID]
    assert other.ack(changed) == [OK]
    other.turns.run(5000)
    assert sorted(other.receive().bodies) == ["b", "e", "f"]


def test_a_replica_that_followed_goes_on_too() -> None:
    broker = master()
    replica = PopBroker(broker.log, broker.turns)
    replica.rebuild()
    broker.send(*"abcd")
    messages = broker.receive(3).messages
    broker.ack(messages[1])
    queue = replica.pop_service.ledger.queue("g", "t", 0)
    assert queue is not None
    assert queue.in_flight == 2
    assert list(replica.pop_service.ledger.snapshot_rows()) == list(broker.pop_service.ledger.snapshot_rows())
    assert replica.metadata.topics() == broker.metadata.topics()


def test_leases_survive_a_change_of_master_for_a_while() -> None:
    broker = master()
    broker.send("a", "b")
    one = broker.receive(1, client_id="c1", auto_renew=True, invisible_time_ms=10_000).messages[0]
    broker.receive(1, client_id="c2", auto_renew=True, invisible_time_ms=10_000)
    turns = broker.turns
    turns.run(9000)
    other = PopBroker(broker.log.copy(), turns).become_master()
    other.alive.add("c1")
    turns.run(29_000)
    assert other.receive().outcome.status == PopStatus.NOTHING
    turns.run(1000)
    assert other.receive().bodies == ["b"]
    assert other.ack(one) == [OK]


def test_what_an_answer_of_the_old_master_carried_comes_back_though_its_consumer_lives() -> None:
    """The consumer never got it, and nobody else can: it is not hidden for as long as a slow listener might take."""
    broker = master()
    broker.send("a", "b")
    broker.receive(1, client_id="c1", auto_renew=True, invisible_time_ms=60_000)
    broker.turns.run(5000)
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    other.alive.add("c1")
    own = other.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages[0]
    other.turns.run(59_000)
    assert other.receive().outcome.status == PopStatus.NOTHING
    other.turns.run(1000)
    assert other.receive().bodies == ["a"]
    other.turns.run(1_000_000)
    assert other.ack(own) == [OK], "what it took from this master is leased as ever"


def test_a_consumer_that_acks_one_of_the_messages_has_the_others_too() -> None:
    """It works through them one by one, for longer than it takes to see that an answer was lost: nobody else gets them."""
    broker = master()
    broker.send(*"abc")
    first, *others = broker.receive(3, client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    other.alive.add("c1")
    other.turns.run(50_000)
    assert other.ack(first) == [OK]
    other.turns.run(1_000_000)
    assert other.receive().outcome.status == PopStatus.NOTHING
    assert other.ack(*others) == [OK, OK]


def test_what_the_old_master_finished_by_itself_does_not_say_that_the_rest_arrived() -> None:
    """It acknowledges what a consumer's filter does not want, in the answer that goes down with it."""
    broker = master()
    broker.send(*"ab")
    first, _ = broker.receive(2, client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages
    assert broker.ack(first) == [OK]
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    other.alive.add("c1")
    other.turns.run(60_000)
    assert other.receive().bodies == ["b"]


def test_state_of_deleted_topics_and_groups_does_not_come_back() -> None:
    broker = master()
    broker.topic("u")
    broker.group("h")
    broker.send("a")
    broker.send("u", topic="u")
    broker.receive(group="h")
    broker.receive(topic="u")
    cut = broker.log.end_offset
    broker.metadata.delete_topic("u", lambda _: None)
    broker.metadata.delete_group("h", lambda _: None)
    assert [queue.group for queue in broker.pop_service.ledger.queues()] == []
    # a new master whose log ends between the deletion and the record that drops the pop state
    for end_offset in [position for position in broker.log.positions if position > cut]:
        other = PopBroker(broker.log.copy(end_offset), broker.turns).become_master()
        for queue in other.pop_service.ledger.queues():
            assert other.metadata.topic(queue.topic) is not None
            assert other.metadata.group(queue.group) is not None


def test_snapshots_bound_what_a_new_master_reads() -> None:
    broker = master()
    for number in range(50):
        broker.send(str(number))
        messages = broker.receive(1, invisible_time_ms=1000_000).messages
        if number % 3:
            broker.ack(*messages)
    broker.pop_service.rolled()
    broker.metadata.rolled()
    broker.turns.run()
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert list(other.pop_service.ledger.snapshot_rows()) == list(broker.pop_service.ledger.snapshot_rows())
    kinds = broker.log.kinds(POP_TOPIC)
    broker.log.expire(POP_TOPIC, 0, kinds.index("snapshot"))
    third = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert list(third.pop_service.ledger.snapshot_rows()) == list(broker.pop_service.ledger.snapshot_rows())


def test_what_a_new_master_cannot_read_yet_is_not_lost() -> None:
    broker = master()
    broker.group("ordered", fifo=True)
    before = broker.log.end_offset
    broker.send("a")
    broker.receive(invisible_time_ms=1000)
    broker.receive(group="ordered", fifo=True, invisible_time_ms=1000)
    message = broker.receive(group="h", invisible_time_ms=60_000).messages[0]
    broker.turns.run(900)
    log = broker.log.copy(dispatched=before)
    log.dispatches = False
    other = PopBroker(log, broker.turns).become_master()
    other.turns.run(1000)
    assert other.receive(group="ordered", fifo=True).outcome.status == PopStatus.NOTHING
    assert other.forward(message, group="h") == FAILED
    other.log.dispatch()
    assert other.forward(message, group="h") == OK
    assert other.receive(group="ordered", fifo=True).bodies == ["a"]
    log.dispatches = True
    other.turns.run(100)
    assert other.receive().bodies == ["a"]
    assert other.pop_service.counters.lost == 0


def test_what_waits_is_counted_once_by_a_master_that_leads_again() -> None:
    """A planned switch and back: nothing of its log was cut, so its ledger was not derived anew."""
    broker = master()
    broker.send("a", "b", "c")
    assert len(broker.receive(invisible_time_ms=1000).messages) == 3
    broker.turns.run(1000)
    pop = broker.pop_service
    assert pop.ledger.returned_count("g", "t") == 3
    pop.step_down()
    pop.lead()
    broker.turns.run(0)
    assert pop.ledger.returned_count("g", "t") == 3
    assert broker.receive(1).outcome.rest_count == 2
    assert broker.receive().outcome.rest_count == 0
    assert not pop.ledger.returned_count("g", "t")
    assert not list(pop.ledger.returned("g", "t"))


# ---- records of earlier versions


def test_the_state_that_an_earlier_version_wrote_is_read() -> None:
    """Its snapshot, its ordered pop that names no places that it lets go of, its copies in the retry topic."""
    broker = master()
    broker.group("o", fifo=True)
    broker.topic("t", 2)
    broker.send(*"abcd")
    broker.send(*"wxyz", queue_id=1)
    at = broker.turns.wall_ms()
    rows = [
        ["q", "g", "t", 0, 3, at],
        ["b", "g", "t", 0, at, 1000, at + 1000, 0, 3, 5, "", "", None, False],
        ["q", "o", "t", 1, 3, at],
        ["b", "o", "t", 1, at, 1000, at + 1000, 0, [0, 2], 3, "", "one", [1, 2], True],
    ]
    earlier = [
        ("snapshot", {"v": 1, "part": 0, "parts": 1, "rows": rows}),
        ("taken", _taken("g", at + 1, ["t", 1, 2, 0, 2, None])),
        ("taken", _taken("o", at + 2, ["t", 1, 3, 0, 1, [2]], a="two", o=True)),
        ("revived", {"v": 1, "a": [["g", "t", 1, at + 1, 1]]}),
    ]
    for kind, body in earlier:
        broker.log.append(POP_TOPIC, kind, orjson.dumps(body))
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    ledger = other.pop_service.ledger
    assert (ledger.in_flight("g"), ledger.in_flight("o")) == (3, 2)
    other.metadata.ensure_topic("%RETRY%g+t")
    other.send("w", topic="%RETRY%g+t")
    other.turns.run(1000)
    receive = other.receive()
    assert sorted(receive.bodies) == ["a", "c", "d", "w", "x", "y", "z"]
    assert other.ack(*receive.messages) == [OK] * 7
    ordered = other.receive(group="o", queue_id=1, fifo=True)
    assert ordered.bodies == ["w", "y"]
    assert [message.delivery_attempt for message in ordered.messages] == [3, 3]


def test_what_this_version_writes_has_only_more_than_an_earlier_one_knows() -> None:
    """A broker of an earlier version reads by these names and numbers, and ignores what else is there."""
    broker = master()
    broker.group("g", retry_max_times=1)
    broker.send("a", "b")
    broker.receive(1, invisible_time_ms=1000)
    broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.receive(invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.pop_service.rolled()
    broker.turns.run()
    for encoded in broker.log.bodies(POP_TOPIC):
        record = decode_record(encoded)
        body = orjson.loads(record.body)
        kind = record.property_map()["TAGS"]
        assert kind in ("taken", "revived", "snapshot")
        if kind == "taken":
            assert {"v", "g", "pt", "inv", "due", "c", "a", "o", "b"} <= body.keys()
            assert all(len(batch) == 6 for batch in body["b"])
        elif kind == "revived":
            assert all(len(entry) == 5 for entry in body["a"])
        else:
            assert all(len(row) == {"q": 6, "b": 14}[row[0]] for row in body["rows"])


def _taken(group: str, pop_time_ms: int, batch: list[Any], **changes: Any) -> dict[str, Any]:
    body = {"v": 1, "g": group, "pt": pop_time_ms, "inv": 1000, "due": pop_time_ms + 1000, "c": "", "a": "", "o": False}
    return {**body, "b": [batch], **changes}
