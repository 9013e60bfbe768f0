"""Answers to pulls that are made and sent beside the loop: what clients get is what the reads of the store say, whatever happens
to sockets and files meanwhile."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from brokerd.native.carrier import LEAST_BYTES, MOST_ANSWERS
from brokerd.processors.pulling.checks import FLAG_SUBSCRIPTION, FLAG_SUSPEND
from brokerd.processors.pulling.pull import LEAST_TOGETHER
from remoting import codes
from remoting.record.codec import decode_records
from remoting.transport import taking
from tests.support.native_library import native_library
from tests.support.pulled_broker import LARGE, QUEUES, Counted, check, on_both_loops, serving
from tests.support.pulls import pull_frame
from tests.support.remoting_broker import RemotingBroker
from tests.unit.brokerd.store.stores import dispatch_all, draft, put


@pytest.fixture(autouse=True)
def _in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemotingBroker, "library", native_library())
    monkeypatch.setattr(taking, "_OFTEN", 1 << 30)  # nobody stays with the thread


@on_both_loops
async def test_everybody_gets_what_the_store_reads(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill()
        rng = Random(1)
        peers = await broker.connected(6)
        for turn in range(60):
            asked = []
            for peer in rng.sample(peers, rng.randrange(1, 7)):
                queue_id, offset, count = rng.randrange(QUEUES), rng.randrange(100), rng.choice((1, 8, 32))
                peer.pull(turn, offset, queue_id, maxMsgNums=count)
                asked.append((peer, queue_id, offset, count))
            for peer, queue_id, offset, count in asked:
                answer = await peer.answer()
                assert answer.opaque == turn
                check(answer, broker.expected(offset, queue_id, count), min(offset + count, 100))
        assert broker.carrier.carried > 20
        assert broker.carrier.sent > 20
        assert all(connection._in_flight == 0 for connection in broker.server.connections)
        assert broker.inner.counters.out_messages > 1000


@on_both_loops
async def test_without_a_thread_the_loop_sends_all(directory: Path) -> None:
    async with serving(directory, Counted(has_thread=False)) as broker:
        broker.fill()
        peers = await broker.connected(3)
        for offset in range(0, 90, 7):
            for peer in peers:
                peer.pull(offset, offset)
            for peer in peers:
                check(await peer.answer(), broker.expected(offset), min(offset + 32, 100))
        assert (broker.carrier.carried, broker.carrier.sent) == (0, 39)


@on_both_loops
async def test_what_is_small_or_alone_is_the_loops(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill()
        one, other = await broker.connected(2)
        for offset in range(20):
            one.pull(offset, offset)
            check(await one.answer(), broker.expected(offset), offset + 32)
        assert broker.carrier.carried == 0, "nobody else pulled"
        few = LEAST_BYTES // (LARGE + 400)
        for offset in range(20):
            for peer in (one, other):
                peer.pull(offset, offset, maxMsgNums=few)
                check(await peer.answer(), broker.expected(offset, 0, few), offset + few)
        assert broker.carrier.carried == 0, "too little"
        for offset in range(20):
            for peer in (one, other):
                peer.pull(offset, offset)
                check(await peer.answer(), broker.expected(offset), offset + 32)
        assert broker.carrier.carried >= 39


@on_both_loops
async def test_no_more_wait_for_the_thread_than_it_may_hold(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True)) as broker:
        broker.fill()
        peers = await broker.connected(MOST_ANSWERS + 4)
        for number, peer in enumerate(peers):
            peer.pull(number, number)
        await broker.until(lambda: broker.carrier.carried + broker.carrier.sent == len(peers))
        assert broker.carrier.carried == MOST_ANSWERS
        broker.carrier.let_go()
        for number, peer in enumerate(peers):
            check(await peer.answer(), broker.expected(number), number + 32)


@on_both_loops
async def test_what_a_socket_does_not_take_follows(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill(body_bytes=4000)
        peers = await broker.connected(4)
        broker.narrow()
        for turn in range(5):
            for peer in peers:
                peer.pull(turn, 10 * turn)
            for peer in peers:
                check(await peer.answer(), broker.expected(10 * turn), 10 * turn + broker.count_of(10 * turn))
        assert broker.carrier.missed > 0
        assert broker.carrier.carried > broker.carrier.missed // 2


@on_both_loops
async def test_who_asks_on_gets_all_in_order(directory: Path) -> None:
    """Without reading, until more than a socket takes is on its way."""
    async with serving(directory) as broker:
        broker.fill()
        peers = await broker.connected(3)
        broker.narrow()
        for opaque in range(40):
            for peer in peers:
                peer.pull(opaque, opaque)
        for peer in peers:
            answers = await peer.answers(40)
            assert [answer.opaque for answer in answers] == list(range(40))
            for offset, answer in enumerate(answers):
                check(answer, broker.expected(offset), offset + 32)


@on_both_loops
async def test_who_has_several_requests_open_gets_their_answers_one_behind_the_other(directory: Path) -> None:
    """Also small ones, and whatever his socket takes of those before."""
    for is_narrow in (False, True):
        async with serving(directory / str(is_narrow), Counted(is_held=True)) as broker:
            broker.fill(body_bytes=4000)
            first, second = await broker.connected(2)
            if is_narrow:
                broker.narrow()
            first.pull(1, 0, maxMsgNums=1)
            await first.answer()
            second.writer.write(
                b"".join(pull_frame(opaque, opaque, maxMsgNums=1 + opaque % 2 * 31) for opaque in range(1, 9))
            )
            await broker.until(lambda: broker.carrier.carried == MOST_ANSWERS)
            assert broker.carrier.behind == MOST_ANSWERS - 1
            broker.carrier.let_go()
            for opaque, answer in enumerate(await second.answers(8), 1):
                assert answer.opaque == opaque
                count = 1 + opaque % 2 * 31
                check(answer, broker.expected(opaque, 0, count), opaque + count)
            assert is_narrow == (broker.carrier.missed > 0)
            assert all(connection._in_flight == 0 for connection in broker.server.connections)


@on_both_loops
async def test_what_is_behind_an_answer_that_was_not_made_is_given_all_the_same(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True)) as broker:
        broker.fill()
        first, second = await broker.connected(2)
        first.pull(1, 0)
        await first.answer()
        second.writer.write(pull_frame(1, 20) + pull_frame(2, 40) + pull_frame(3, 60))
        await broker.until(lambda: broker.carrier.carried == 3)
        before = broker.expected(20, 0, 5)
        broker.damage(0, 25)
        broker.carrier.let_go()
        answers = {answer.opaque: answer for answer in await second.answers(3)}
        check(answers[1], before, 25)
        check(answers[2], broker.expected(40), 72)
        check(answers[3], broker.expected(60), 92)
        assert all(connection._in_flight == 0 for connection in broker.server.connections)


@on_both_loops
async def test_who_is_alone_and_asks_on_gets_all_in_order(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill()
        [peer] = await broker.connected(1)
        peer.writer.write(b"".join(pull_frame(opaque, opaque) for opaque in range(60)))
        for offset, answer in enumerate(await peer.answers(60)):
            assert answer.opaque == offset
            check(answer, broker.expected(offset), offset + 32)


@on_both_loops
async def test_a_record_that_rots_before_it_is_copied_is_not_given_out(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True)) as broker:
        broker.fill()
        first, second, third = await broker.connected(3)
        first.pull(1, 0)
        check(await first.answer(), broker.expected(0), 32)
        second.pull(2, 20)
        await broker.until(lambda: broker.carrier.carried == 1)
        third.pull(3, 25)
        await broker.until(lambda: broker.carrier.carried == 2)
        before = broker.expected(20, 0, 5)
        broker.damage(0, 25)
        broker.carrier.let_go()
        check(await second.answer(), before, 25)
        answer = await third.answer()
        assert answer.code == codes.SYSTEM_ERROR
        assert "damaged" in (answer.remark or "")
        assert {suspicion.queue_offset for suspicion in broker.suspicions} == {25}
        assert all(connection._in_flight == 0 for connection in broker.server.connections)
        third.pull(4, 26)
        check(await third.answer(), broker.expected(26), 58)


@on_both_loops
async def test_a_record_that_rots_is_not_given_out_by_the_loop(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill()
        [peer] = await broker.connected(1)
        before = broker.expected(20, 0, 5)
        broker.damage(0, 25)
        peer.pull(1, 20)
        check(await peer.answer(), before, 25)
        assert {suspicion.queue_offset for suspicion in broker.suspicions} == {25}
        assert all(connection._in_flight == 0 for connection in broker.server.connections)


@on_both_loops
async def test_what_was_begun_and_cannot_be_ended_closes_the_connection(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True)) as broker:
        broker.fill(body_bytes=4000)
        first, second = await broker.connected(2)
        broker.narrow()
        first.pull(1, 0, maxMsgNums=1)
        await first.answer()
        second.pull(2, 0)
        await broker.until(lambda: broker.carrier.carried == 1)
        expected = broker.expected(0)
        broker.carrier.before_again = lambda: broker.damage(0, 31)
        broker.carrier.let_go()
        got = await second.reader.read()
        assert 0 < len(got) < len(expected)
        assert got.endswith(expected[len(got) - len(expected) - 100 : len(got) - 100] or b"") or expected[:1000] in got
        await broker.until(lambda: len(broker.server.connections) == 1)
        first.pull(3, 40, maxMsgNums=2)
        check(await first.answer(), broker.expected(40, 0, 2), 42)


@on_both_loops
async def test_the_log_is_cut_when_nobody_looks(directory: Path) -> None:
    """Who looked at a page that is gone would end the process."""
    async with serving(directory, Counted(is_held=True)) as broker:
        broker.fill(40)
        first, second = await broker.connected(2)
        first.pull(1, 0)
        expected = broker.expected(8)
        await first.answer()
        second.pull(2, 8)
        await broker.until(lambda: broker.carrier.carried == 1)
        assert broker.carrier.waited == 0
        [(keep, _, _)] = broker.store.read_units("t", 0, 2, 1)
        broker.store.truncate(keep)
        assert broker.carrier.waited == 1
        check(await second.answer(), expected, 40)
        put(broker.store, *(draft(b"new", topic="t") for _ in range(3)))
        dispatch_all(broker.store)
        second.pull(3, 0)
        answer = await second.answer()
        assert [record.body for record in decode_records(answer.body)][2:] == [b"new"] * 3


@on_both_loops
async def test_what_a_full_socket_left_is_not_looked_at_behind_a_cut(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True)) as broker:
        broker.fill(60, body_bytes=4000)
        first, second = await broker.connected(2)
        broker.narrow()
        first.pull(1, 0, maxMsgNums=1)
        await first.answer()
        expected = broker.expected(20)
        second.pull(2, 20)
        await broker.until(lambda: broker.carrier.carried == 1)
        [(keep, _, _)] = broker.store.read_units("t", 0, 2, 1)
        broker.store.truncate(keep)
        assert broker.carrier.missed == 1
        check(await second.answer(), expected, 52)


@on_both_loops
async def test_a_file_that_leaves_the_log_is_there_until_its_answers_are(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True)) as broker:
        broker.fill(300)
        assert len(broker.store.commitlog._segments) >= 2
        first, second = await broker.connected(2)
        first.pull(1, 0)
        await first.answer()
        second.pull(2, 8)
        await broker.until(lambda: broker.carrier.carried == 1)
        expected = broker.expected(8)
        broker.store.mark_flushed(broker.store.sync())
        broker.store.commitlog.forget_oldest()()
        broker.carrier.let_go()
        check(await second.answer(), expected, 40)


@on_both_loops
async def test_a_mapping_is_let_go_though_nobody_pulls_any_more(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill()
        peers = await broker.connected(2)
        for peer in peers:
            peer.pull(1, 0)
        for peer in peers:
            await peer.answer()
        assert broker.carrier.carried
        await broker.until(lambda: not broker.carrier._answers)
        assert not broker.carrier._batches


@on_both_loops
async def test_who_is_gone_harms_nobody(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill()
        rng = Random(4)
        peers = await broker.connected(9)
        for turn in range(8):
            for peer in peers:
                peer.pull(turn, rng.randrange(60))
            gone = peers.pop()
            if turn % 2:
                gone.writer.transport.abort()
            else:
                gone.writer.write_eof()
                await gone.answer()
            for peer in peers:
                assert (await peer.answer()).opaque == turn
        await broker.until(lambda: len(broker.server.connections) <= len(peers))


@on_both_loops
async def test_a_socket_stays_open_until_its_answer_is_sent(directory: Path) -> None:
    """Else the answer would go to whatever got its descriptor next."""
    async with serving(directory, Counted(is_held=True)) as broker:
        broker.fill()
        first, *others = await broker.connected(4)
        first.pull(1, 0)
        await first.answer()
        for peer in others:
            peer.pull(2, 3)
        await broker.until(lambda: broker.carrier.carried == 3)
        for connection in list(broker.server.connections):
            connection.abort()
        await broker.until(lambda: not broker.server.connections)
        for peer in others:
            check(await peer.answer(), broker.expected(3), 35)


@on_both_loops
async def test_those_who_wait_are_answered_by_it(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill(4)
        peers = await broker.connected(4)
        for number, peer in enumerate(peers):
            peer.pull(number, 4, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND)
        await broker.until(lambda: broker.inner.pull.waiting_count == 4)
        broker.fill(20)
        broker.inner.pull.wake("t", 0)
        broker.inner.turns.run()
        for peer in peers:
            check(await peer.answer(), broker.expected(4), 24)
        assert broker.carrier.carried >= 2
        assert broker.inner.pull.waiting_count == 0


@on_both_loops
async def test_who_waits_for_several_queues_gets_their_messages_in_one_write(directory: Path) -> None:
    async with serving(directory) as broker:
        broker.fill(5)
        one, other = await broker.connected(2)
        waits = {"sysFlag": FLAG_SUBSCRIPTION | FLAG_SUSPEND}
        for first in (5, 6):
            for queue_id in range(QUEUES):
                one.pull(first + queue_id, first, queue_id, **waits)
            for queue_id in range(LEAST_TOGETHER - 1):
                other.pull(first + queue_id, first, queue_id, **waits)
            await broker.until(lambda: broker.inner.pull.waiting_count == QUEUES + LEAST_TOGETHER - 1)
            broker.fill(1)
            dispatch_all(broker.store)
            sent = broker.carrier.sent
            for queue_id in range(QUEUES):
                broker.inner.pull.wake("t", queue_id)
            broker.inner.turns.run()
            assert broker.carrier.sent - sent == LEAST_TOGETHER - 1, "what is for the other one leaves at once"
            for peer, count in ((one, QUEUES), (other, LEAST_TOGETHER - 1)):
                for answer in sorted(await peer.answers(count), key=lambda each: each.opaque):
                    check(answer, broker.expected(first, answer.opaque - first, 1), first + 1)
        assert all(connection._in_flight == 0 for connection in broker.server.connections)
