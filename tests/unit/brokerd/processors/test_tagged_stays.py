"""Readers with tags whose connections stay with the carrier's thread: they get what the store has of what they want, and as much
of it there as who wants all messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting import codes
from remoting.java_hash import java_hash
from remoting.record.codec import decode_records
from tests.support.pulled_broker import SEGMENT_BYTES, Broker, on_both_loops, serving, stay_for_long


@pytest.fixture(autouse=True)
def _in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_for_long(monkeypatch)


def wanted_of(broker: Broker, offset: int, queue_id: int, tags: str) -> tuple[int, bytes, int]:
    """Code, body and next offset of a pull with tags: of the messages that it looks at, as far as a file of the log has them."""
    hashes = None if tags == "*" else [java_hash(tag) for tag in tags.split(" || ")]
    count, next_offset, file = 0, offset, -1
    for place, _, code in broker.store.read_units("t", queue_id, offset, 32 if hashes is None else 800):
        if hashes is None or code in hashes:
            file = place // SEGMENT_BYTES if file < 0 else file
            if place // SEGMENT_BYTES != file:
                break
            count += 1
        next_offset += 1
        if count == 32:
            break
    if not count:
        return codes.PULL_RETRY_IMMEDIATELY, b"", next_offset
    found = broker.store.read_joined("t", queue_id, offset, count, 1 << 20, hashes)
    return codes.SUCCESS, bytes(found.body), next_offset


@on_both_loops
async def test_who_wants_some_of_the_messages_gets_them_and_stays(directory: Path) -> None:
    """However many of those that a pull looks at, none or all, wherever they are."""
    subscriptions = ("*", "a || b || c", "a", "c || d", "d", "none")
    tags = [*"ab" * 15, "c"] * 40 + ["d"]
    async with serving(directory, messages=6000, body_bytes=100, tags=tags) as broker:
        assert len(broker.store.commitlog._segments) >= 3
        counted = broker.inner.counters
        peers = await broker.connected(len(subscriptions))
        places = dict.fromkeys(peers, 0)
        given = misses = pulls = 0
        while those := [(peer, tag) for peer, tag in zip(peers, subscriptions, strict=True) if places[peer] < 4500]:
            for peer, tag in those:
                peer.pull(pulls, places[peer], 1, subscription=tag)
            for peer, tag in those:
                answer, expected = await peer.answer(), wanted_of(broker, places[peer], 1, tag)
                places[peer] = int(answer.ext["nextBeginOffset"])
                assert (answer.code, bytes(answer.body), places[peer]) == expected
                if tag == "none" and pulls < 500:
                    places[peer] %= 4000
                assert answer.remark == ("FOUND" if answer.body else "NO_MATCHED_MESSAGE")
                assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "6000")
                given += sum(1 for _ in decode_records(answer.body))
                misses += not answer.body
                pulls += 1
        told = await broker.all_back()
        assert misses > 5
        assert (counted.out_messages, counted.missed) == (given, misses)
        assert counted.statistics.broker_get.times == sum(counted.reads.counts) == pulls - misses
        assert sum(each.answers for each in told) > pulls / 2
        assert sum(kind.misses for each in told for kind in each.kinds) > 0
        assert all(connection._in_flight == 0 for connection in broker.server.connections)


@on_both_loops
async def test_what_is_wanted_of_a_later_file_is_given_as_what_is_in_the_first(directory: Path) -> None:
    tags = ["early"] * 300 + ["late"] * 100
    async with serving(directory, messages=400, tags=tags) as broker:
        [first, *_, last] = broker.store.read_units("t", 0, 0, 400)
        assert first[0] // SEGMENT_BYTES < broker.store.read_units("t", 0, 300, 1)[0][0] // SEGMENT_BYTES
        [peer] = await broker.connected(1)
        for offset in (0, 10, 0, 290, 0):
            peer.pull(7, offset, subscription="late")
            answer = await peer.answer()
            assert (answer.code, bytes(answer.body), int(answer.ext["nextBeginOffset"])) == wanted_of(
                broker, offset, 0, "late"
            )
            assert int(answer.ext["nextBeginOffset"]) == 332
        assert broker.carrier.sent + broker.carrier.carried + sum(each.answers for each in await broker.all_back()) == 5
        assert last[0] // SEGMENT_BYTES == len(broker.store.commitlog._segments) - 1
