"""The table at every cut of the log is what the master had there; nothing depends on how far dispatch came."""

from __future__ import annotations

import random
from collections.abc import Sequence

from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.decide import Rules
from brokerd.metadata.names import SystemNames
from brokerd.metadata.service import MetadataService
from brokerd.metadata.tables import MetadataTables
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from brokerd.transactions.checking import CheckBack
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.service import TransactionService
from brokerd.transactions.settings import TransactionSettings
from brokerd.transactions.topics import TransactionTopics
from remoting.names import HALF_TOPIC
from remoting.record.properties import encode_properties
from remoting.settings import Live
from tests.support.alone import Nobody
from tests.support.memory_log import HOST, MemoryRecordLog
from tests.support.open_guard import anybody_may
from tests.support.turns import Turns


class Follower:
    """A broker's transactions over a log in memory."""

    def __init__(self, log: MemoryRecordLog, turns: Turns) -> None:
        self.log = log
        self.turns = turns
        names = SystemNames("c", "broker-a", development=False, delay_levels=18)
        self.metadata = MetadataService(log, Rules(MetadataTables(), names, turns.wall_ms), turns)
        self.topics = TransactionTopics(log, self.metadata, turns.wall_ms, HOST)
        settings = Live(TransactionSettings())
        checks = CheckBack(self.topics, Nobody(), "broker-a", turns, settings, move_up_bytes=3000)
        self.service = TransactionService(self.topics, checks, settings, lambda draft: draft)
        log.listeners.append(self._dispatched)
        self.rebuild()

    def rebuild(self) -> None:
        self.metadata.rebuild()
        self.service.rebuild()

    def _dispatched(self, arrivals: Sequence[Arrival]) -> None:
        self.metadata.dispatched(arrivals)
        self.service.dispatched(arrivals)

    @property
    def open(self) -> list[tuple[int, int, int]]:
        return [(half.first, half.queue_offset, half.checks) for half in self.service.table]


def begin(master: Follower, properties: dict[str, str]) -> tuple[int, int]:
    encoded = encode_properties({"TRAN_MSG": "true", "PGROUP": "pg", **properties})
    draft = master.service.to_stored_draft(Draft("T", 0, b"x", encoded, master.turns.wall_ms(), HOST, sys_flag=4))
    [place] = master.log.append_placed([draft])
    master.service.stored(draft, place)
    return place.queue_offset, place.physical_offset


def tell_story(seed: int) -> tuple[Follower, dict[int, list[tuple[int, int, int]]]]:
    """A master's life, and what was open at each end of a record that changed it."""
    rng, turns = random.Random(seed), Turns()
    log = MemoryRecordLog(turns.wall_ms)
    log.dispatches = False
    master = Follower(log, turns)
    master.metadata.catch_up()
    master.service.catch_up()
    master.service.lead()
    master.metadata.put_topic(TopicConfig("T"), lambda _: None)
    states: dict[int, list[tuple[int, int, int]]] = {}
    known: list[tuple[int, int]] = []
    for n in range(120):
        what = rng.random()
        if what < 0.4:
            immunity = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "400"} if rng.random() < 0.2 else {}
            known.append(begin(master, {"UNIQ_KEY": f"{n}", **immunity}))
        elif what < 0.75 and known:
            queue_offset, physical_offset = rng.choice(known)
            outcome = rng.choice((Outcome.COMMIT, Outcome.ROLLBACK))
            request = EndTransaction("pg", queue_offset, physical_offset, outcome, from_check=True)
            master.service.end(request, lambda _: None, anybody_may)
        elif what < 0.8:
            turns.run(30_000)
        else:
            turns.run(1000)
        if rng.random() < 0.3:
            log.dispatch()
        states[log.end_offset] = master.open
    return master, states


def test_a_replica_has_at_every_cut_what_its_master_had() -> None:
    cuts = 0
    for seed in range(6):
        master, states = tell_story(seed)
        rng = random.Random(seed)
        for end_offset, expected in states.items():
            dispatched = rng.choice([end_offset, rng.choice(list(states)), 0])
            twin = Follower(master.log.copy(end_offset, min(dispatched, end_offset)), master.turns)
            twin.log.is_master = False
            twin.metadata.catch_up()
            twin.service.catch_up()
            assert twin.open == expected, f"seed {seed}, cut at {end_offset}, dispatched to {dispatched}"
            cuts += 1
    assert cuts > 300


def test_a_follower_that_is_cut_forgets_what_was_behind_the_cut() -> None:
    for seed in range(6):
        master, states = tell_story(seed)
        replica = Follower(master.log.copy(), master.turns)
        replica.log.is_master = False
        replica.log.dispatch()
        assert replica.open == master.open
        for end_offset in sorted(states, reverse=True)[::7]:
            replica.log.cut(end_offset)
            replica.metadata.truncated(end_offset)
            replica.service.truncated(end_offset)
            assert replica.open == states[end_offset], f"seed {seed}, cut at {end_offset}"


def test_retention_takes_nothing_that_is_open() -> None:
    master, _ = tell_story(3)
    master.topics.commit_progress()
    master.turns.run(10)
    master.log.dispatch()
    done_before = master.service.table.done_before
    assert done_before > 10
    held = master.service.held_offset()
    assert held is not None
    master.log.expire(HALF_TOPIC, 0, done_before)
    twin = Follower(master.log.copy(), master.turns)
    assert twin.open == master.open
    assert twin.service.held_offset() == held


def test_a_log_that_begins_later_has_what_is_open_from_the_successors() -> None:
    later = 0
    for seed in range(6):
        master, _ = tell_story(seed)
        held = master.service.held_offset()
        assert held is not None
        replica = Follower(master.log.copy(dispatched=0), master.turns)
        replica.log.is_master = False
        replica.log.begin_at(held)
        replica.rebuild()  # an empty log, at its start
        assert replica.open == []
        replica.log.dispatch()
        assert replica.open == master.open, f"seed {seed}"
        later += min(first for first, _, _ in master.open) < master.service.table.done_before
        replica.rebuild()
        assert replica.open == master.open, f"seed {seed}, started again"
    assert later == 6, "some of them began before the replica's log does"
