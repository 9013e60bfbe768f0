"""Who did not take a message does not finish it, whatever he knows of it; and what releases before wrote is read."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from brokerd.journal.replay import encode_snapshot
from brokerd.pop import records
from brokerd.pop.handles import TAG_BITS, ReceiptHandle, decode_handle, proof_of
from brokerd.pop.ledger import PopLedger
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import AckStatus
from remoting.record.codec import decode_record
from tests.support.pop_broker import PopBroker, master

OK, INVALID = AckStatus.OK, AckStatus.INVALID_HANDLE
GUESSES_PER_CALL = 1024


def parsed(text: str) -> ReceiptHandle:
    handle = decode_handle(text)
    assert handle is not None
    return handle


def test_a_stranger_who_knows_all_but_the_tag_finishes_nothing() -> None:
    broker = master()
    broker.send(*"abcd")
    messages = broker.receive().messages
    known = parsed(messages[0].receipt_handle)
    rng = random.Random(5)
    accepted = 0
    for call in range(20):
        guesses = [
            known._replace(queue_offset=number % 4, proof=proof_of(rng.getrandbits(TAG_BITS))).encode()
            for number in range(GUESSES_PER_CALL - 4)
        ]
        guesses += [known._replace(queue_offset=offset, proof="").encode() for offset in range(4)]
        accepted += broker.ack(*guesses).count(OK)
        assert broker.change(guesses[call], 0).status == INVALID
        assert broker.forward(guesses[call]) == INVALID
    assert accepted == 0
    assert broker.progress.in_flight("g", "t", 0) == 4
    assert broker.ack(*messages) == [OK] * 4


def test_guessed_pop_times_finish_nothing() -> None:
    broker = master()
    broker.send("a", "b")
    broker.receive(1)
    own = parsed(broker.receive(1).messages[0].receipt_handle)
    around = range(own.pop_time_ms - 512, own.pop_time_ms + 512)
    guesses = [own._replace(start_offset=0, queue_offset=0, pop_time_ms=each) for each in around]
    assert set(broker.ack(*(each.encode() for each in guesses))) == {INVALID}
    assert set(broker.ack(*(each._replace(proof="").encode() for each in guesses))) == {INVALID}
    assert broker.progress.in_flight("g", "t", 0) == 2


def test_two_pops_have_two_tags_and_a_new_handle_keeps_its_own() -> None:
    broker = master()
    broker.send(*"abc")
    first, second = broker.receive(2).messages
    other = broker.receive().messages[0]
    tags = [parsed(message.receipt_handle).proof for message in (first, second, other)]
    assert tags[0] == tags[1] != tags[2]
    assert [len(tag) for tag in tags] == [16] * 3
    changed = broker.change(first, 20_000).receipt_handle
    assert parsed(changed).proof == tags[0]
    assert broker.ack(parsed(changed)._replace(proof=tags[2]).encode(), changed) == [INVALID, OK]


def test_every_byte_of_a_handle_counts() -> None:
    broker = master()
    broker.send(*"abc")
    messages = [broker.receive(1).messages[0] for _ in range(3)]
    text = messages[1].receipt_handle
    altered = {
        text[:at] + new + text[at + old :]
        for at in range(len(text))
        for old, new in ((1, ""), *((1, each) for each in "0123456789abcdefF \t-"), (1, "\u0661"), (0, "0"), (0, " "))
    } | {text + each for each in ("0", " ", "\n", " 0")}
    for start in range(0, len(altered), GUESSES_PER_CALL):
        some = sorted(altered - {text})[start : start + GUESSES_PER_CALL]
        assert set(broker.ack(*some)) == {INVALID}, [each for each in some if broker.ack(each) == [OK]]
    assert broker.progress.in_flight("g", "t", 0) == 3
    assert broker.ack(text) == [OK]


def test_numbers_in_other_scripts_and_with_zeros_in_front_are_none() -> None:
    broker = master()
    broker.send("a")
    handle = broker.receive(has_tag=False).messages[0].receipt_handle
    assert len(handle.split(" ")) == 8
    for altered in (
        handle.translate({ord(str(digit)): 0x660 + digit for digit in range(10)}),
        " ".join(f"0{each}" if each.isdecimal() else each for each in handle.split(" ")),
        f"{handle} 99",
        f"{handle} 00",
    ):
        assert broker.ack(altered) == [INVALID]
    assert broker.ack(handle) == [OK]


def test_the_originals_proxy_appends_the_place_in_the_log_and_it_has_to_be_right() -> None:
    broker = master()
    broker.send("a", "b", "c")
    one, two, three = broker.receive(has_tag=False).messages
    places = [decode_record(message.record).physical_offset for message in (one, two, three)]
    assert broker.ack(f"{one.receipt_handle} {places[1]}", f"{two.receipt_handle} {places[1] + 1}") == [INVALID] * 2
    # the right one of another message of the batch does not speak for this one
    assert broker.ack(f"{two.receipt_handle} {places[1]}", f"{one.receipt_handle} {places[1]}") == [OK, INVALID]
    assert broker.change(f"{one.receipt_handle} {places[2]}", 0).status == INVALID
    changed = broker.change(f"{one.receipt_handle} {places[0]}", 5000)
    assert changed.status == OK
    assert len(changed.receipt_handle.split(" ")) == 8
    assert broker.forward(f"{three.receipt_handle} {places[2]}") == OK


def test_no_place_speaks_for_a_batch_with_a_tag() -> None:
    broker = master()
    broker.send("a")
    message = broker.receive().messages[0]
    eight = " ".join(message.receipt_handle.split(" ")[:8])
    assert broker.ack(f"{eight} {decode_record(message.record).physical_offset}", eight) == [INVALID, INVALID]
    assert broker.ack(message) == [OK]


@pytest.mark.parametrize("through_a_snapshot", [False, True])
def test_tags_survive_a_switch(through_a_snapshot: bool) -> None:
    broker = master()
    broker.send(*"abc")
    one, two, three = broker.receive().messages
    changed = broker.change(two, 30_000).receipt_handle
    if through_a_snapshot:
        broker.pop_service.rolled()
        broker.turns.run()
        kinds = broker.log.kinds(POP_TOPIC)
        broker.log.expire(POP_TOPIC, 0, kinds.index("snapshot"))
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    guess = parsed(three.receipt_handle)._replace(proof="").encode()
    assert other.ack(one, changed, guess, three) == [OK, OK, INVALID, OK]


# ---- releases before tags


def test_handles_of_what_a_release_before_took_stay_good() -> None:
    broker = master()
    broker.send("a", "b")
    now_ms = broker.turns.wall_ms()
    pop = records.Pop(now_ms, 60_000, now_ms + 60_000)
    broker.log.append(POP_TOPIC, records.TAKEN, orjson.dumps(records.taken("g", pop, [["t", 0, 2, 0, 2, None]])))
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    places = [decode_record(each).physical_offset for each in other.log.bodies("t")]
    handles = [f"0 {now_ms} 60000 0 0 broker-a 0 {offset}" for offset in range(2)]
    assert other.ack(f"{handles[0]} {places[0]}", handles[1]) == [OK, OK]


def test_snapshots_of_releases_before_are_read() -> None:
    ledger = PopLedger()
    ledger.load_row(["q", "g", "t", 0, 3, 1000])
    ledger.load_row(["b", "g", "t", 0, 1000, 60_000, 61_000, 0, 3, 0b101, "", "", None, False])
    handle = ReceiptHandle(0, 1000, 60_000, 0, 0, "broker-a", 0, 2)
    assert ledger.find("g", "t", handle, 2000) is not None
    assert ledger.find("g", "t", handle._replace(queue_offset=1), 2000) is None


def test_releases_before_read_what_is_written_now() -> None:
    """They take apart rows of two and ten values behind the queue, and `changed` entries of eight, and nothing else."""
    broker = master()
    broker.send(*"abc")
    one, two, _ = broker.receive().messages
    broker.ack(one)
    broker.change(two, 5)
    rows: list[list[Any]] = []
    for part in encode_snapshot(broker.pop_service.ledger, 1 << 20):
        body = orjson.loads(part)
        assert body["v"] == 1
        rows += body["rows"]
    assert {row[0]: len(row) for row in rows} == {"q": 6, "b": 14}
    bodies = [orjson.loads(decode_record(each).body) for each in broker.log.bodies(POP_TOPIC)]
    assert all(body["v"] == 1 for body in bodies)
    assert [len(entry) for body in bodies for entry in body.get("c", ())] == [8]
