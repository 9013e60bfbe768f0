"""Pulls of what is in older files of the log, or was there at the start: answered in C as those of the newest, unmapped."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from brokerd.processors.pulling.pull import PullProcessor
from brokerd.store.log.segment import Segment
from remoting import codes
from remoting.record.codec import decode_records
from tests.support.pulled_broker import PATIENT_S, QUEUES, Broker, Counted, check, on_both_loops, serving, stay_for_long
from tests.unit.brokerd.store.stores import dispatch_all, draft, put

MESSAGES = 1300  # in each queue: five files and more, of which two are mapped


@pytest.fixture(autouse=True)
def _in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_for_long(monkeypatch)


class General:
    """Counts what the reads of the store answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = PullProcessor._read

        def counted(processor: PullProcessor, pull: Any) -> Any:
            self.count += 1
            return read(processor, pull)

        monkeypatch.setattr(PullProcessor, "_read", counted)


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> General:
    return General(monkeypatch)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings(broker: Broker) -> int:
    return Path("/proc/self/maps").read_text().count(f"{broker.directory}/commitlog/")


def file_of(broker: Broker, queue_id: int, offset: int) -> Segment:
    [(place, _, _)] = broker.store.read_units("t", queue_id, offset, 1)
    segment = broker.store.commitlog.reads.segment_of(place)
    assert segment is not None
    return segment


def first_in(broker: Broker, file: int) -> int:
    """An offset of queue 0 whose message, and those behind it, are in the so manyeth file."""
    start = broker.store.commitlog.segment_starts()[file]
    return broker.store.offset_behind("t", 0, start)


def forget_oldest(broker: Broker) -> None:
    broker.store.mark_flushed(broker.store.sync())
    broker.store.commitlog.forget_oldest()()


def test_who_jumps_between_all_files_gets_what_the_store_reads(tmp_path: Path, general: General) -> None:
    """And no more files are mapped, or open, than before."""

    async def run() -> None:
        async with serving(tmp_path / "data", messages=MESSAGES) as broker:
            rng, older, in_two = Random(1), 0, 0
            peers = await broker.connected(5)
            before = open_descriptors()
            for turn in range(120):
                asked = []
                for peer in rng.sample(peers, rng.randrange(1, 6)):
                    queue_id, offset, count = rng.randrange(QUEUES), rng.randrange(MESSAGES), rng.choice((1, 8, 32))
                    file, last = file_of(broker, queue_id, offset), min(offset + count, MESSAGES) - 1
                    older += file.view is None
                    in_two += file_of(broker, queue_id, last) is not file
                    peer.pull(turn, offset, queue_id, maxMsgNums=count)
                    asked.append((peer, queue_id, offset, count))
                for peer, queue_id, offset, count in asked:
                    answer = await peer.answer()
                    assert answer.opaque == turn
                    given = broker.count_of(offset, queue_id, count)
                    check(answer, broker.expected(offset, queue_id, count), offset + given)
                assert mappings(broker) == 2
                assert open_descriptors() == before
            assert older > 100
            assert in_two > 5
            assert general.count == 0, "an answer ends where its file does"
            assert broker.carrier.carried > 20
            assert broker.carrier.sent > 50

    uvloop.run(run())


def test_what_was_there_at_the_start_is_not_left_to_the_general_path(tmp_path: Path, general: General) -> None:
    async def run() -> None:
        async with serving(tmp_path / "data", messages=100) as broker:
            expected = broker.expected(20)
        async with serving(tmp_path / "data") as broker:
            assert mappings(broker) == 0
            [peer] = await broker.connected(1)
            peer.pull(1, 20)
            check(await peer.answer(), expected, 52)
            assert not general.count

    uvloop.run(run())


@on_both_loops
async def test_a_record_that_rots_before_it_is_copied_is_not_given_out(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True), messages=MESSAGES) as broker:
        first, second = await broker.connected(2)
        first.pull(1, 0)
        check(await first.answer(), broker.expected(0), 32)
        second.pull(2, 20)
        await broker.until(lambda: broker.carrier.carried == 1)
        before = broker.expected(20, 0, 5)
        broker.damage(0, 25)
        broker.carrier.let_go()
        check(await second.answer(), before, 25)
        assert {suspicion.queue_offset for suspicion in broker.suspicions} == {25}


@on_both_loops
async def test_a_file_that_is_cut_short_under_an_answer_harms_nobody(directory: Path) -> None:
    """Of a mapping, this would end the process."""
    async with serving(directory, Counted(is_held=True), messages=MESSAGES) as broker:
        first, second = await broker.connected(2)
        first.pull(1, 0)
        await first.answer()
        second.pull(2, 20)
        await broker.until(lambda: broker.carrier.carried == 1)
        os.truncate(broker.directory / "commitlog" / f"{0:020d}", 0)
        broker.carrier.let_go()
        assert (await second.answer()).code == codes.SYSTEM_ERROR
        second.pull(3, at := first_in(broker, 1))
        check(await second.answer(), broker.expected(at), at + 32)


@on_both_loops
async def test_a_file_that_leaves_the_log_is_there_until_its_answers_are(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True), messages=MESSAGES) as broker:
        first, second = await broker.connected(2)
        first.pull(1, 0)
        await first.answer()
        before = open_descriptors()
        second.pull(2, 8)
        await broker.until(lambda: broker.carrier.carried == 1)
        expected = broker.expected(8)
        forget_oldest(broker)
        assert open_descriptors() == before, "somebody reads it"
        with (broker.directory / "other").open("wb") as other:
            other.write(bytes(1 << 20))
            broker.carrier.let_go()
            check(await second.answer(), expected, 40)
        broker.carrier.finish_all()
        assert open_descriptors() == before - 1


@on_both_loops
async def test_a_file_that_leaves_the_log_is_there_until_who_stays_is_back(directory: Path) -> None:
    async with serving(directory, messages=MESSAGES) as broker:
        [peer] = await broker.connected(1)
        begun, before = broker.carrier.begun, open_descriptors()
        async with asyncio.timeout(PATIENT_S):
            while broker.carrier.begun == begun:
                peer.pull(0, 0, maxMsgNums=3)
                check(await peer.answer(), broker.expected(0, 0, 3), 3)
        expected = broker.expected(8, 0, 3)
        forget_oldest(broker)
        peer.pull(1, 8, maxMsgNums=3)
        check(await peer.answer(), expected, 11)
        assert open_descriptors() == before
        broker.carrier.recall_stays()
        await broker.until(lambda: len(broker.carrier.stays) == broker.carrier.begun)
        assert sum(stay.answers for stay in broker.carrier.stays) > 0
        assert open_descriptors() == before - 1
        peer.pull(2, 8, maxMsgNums=3)
        assert (await peer.answer()).code == codes.PULL_OFFSET_MOVED


@on_both_loops
async def test_an_older_file_that_is_the_last_one_again_is_cut_when_nobody_reads_it(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True), messages=MESSAGES) as broker:
        first, second = await broker.connected(2)
        first.pull(1, 0)
        await first.answer()
        expected = broker.expected(8)
        second.pull(2, 8)
        await broker.until(lambda: broker.carrier.carried == 1)
        [(keep, _, _)] = broker.store.read_units("t", 0, 2, 1)
        broker.store.truncate(keep)
        assert broker.carrier.waited == 1
        check(await second.answer(), expected, 40)
        put(broker.store, *(draft(b"new", topic="t") for _ in range(3)))
        dispatch_all(broker.store)
        second.pull(3, 0)
        answer = await second.answer()
        assert [record.body for record in decode_records(answer.body)][2:] == [b"new"] * 3
