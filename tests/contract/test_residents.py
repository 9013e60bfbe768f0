"""What every resident of the log does: at a position of the log it has what a slow replay of the log up to there gives.

One story is told to all of them: a master lives through several files of its log; others copy that log, follow it, are cut, start
again without the files that nobody holds, become the master and step down. The replay decodes record after record from the first
byte on, and uses no journal, no snapshot and no queue. A new resident has to be added to it (`STATES`, `Replay`), or nothing here
passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from brokerd.composition.core import BrokerCore
from brokerd.composition.residents import Residents
from brokerd.delay.levels import SCHEDULE_GROUP
from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC
from brokerd.journal.journal import JournalSettings
from brokerd.journal.replay import SNAPSHOT, Table, decode_log_record
from brokerd.journal.resident import Resident
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.names import METADATA_TOPIC
from brokerd.metadata.tables import MetadataTables
from brokerd.placement.handovers import Handovers
from brokerd.placement.placement import Placement
from brokerd.placement.service import PLACEMENTS_TOPIC
from brokerd.placement.table import PlacementTable, TopicState
from brokerd.pop.ledger import PopLedger
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import PopOutcome, PopRequest, PopStatus
from brokerd.replication.roles.effects import Role
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.put_status import PutStatus
from brokerd.store.settings import StoreSettings
from brokerd.store.unit import Unit
from brokerd.tiers.table import TIERS_TOPIC, TierTable, changed
from brokerd.timers.codes import DUE_MS, LEG_MS, key_of, timer_code
from brokerd.timers.cursor import FENCE, TIMERS_TOPIC, TimerTable
from brokerd.timers.interface import Recalled
from brokerd.timers.rolling import leg_before
from brokerd.timers.set_back import BOUND_MS
from brokerd.timers.settings import TimerSettings
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.records import OP_TOPIC, done_offsets, half_of
from brokerd.transactions.table import OpenTransactions
from remoting.facts.placements import PlacementFact, PlacementNews, ShareFact, TopicPlacement
from remoting.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.record.codec import decode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import MAGIC_V1, MAGIC_V2, SYS_TRANSACTION_PREPARED
from remoting.record.properties import encode_properties
from remoting.settings import Live
from remoting.tier.contents import Queue, committed, cut, expired
from remoting.tier.manifest import Position
from remoting.tier.segments import Segment
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.open_guard import anybody_may
from tests.support.turns import Turns

FILE_BYTES = 32_768
STORE = StoreSettings(
    segment_size_bytes=FILE_BYTES,
    queue_file_units=64,
    max_record_bytes=8192,
    index_enabled=False,
)
OWN, ANOTHER = "broker-a", "broker-b"  # broker groups
DELAYS = (1000, 2000, 5000)
JOURNAL = JournalSettings(snapshot_every_records=64, snapshot_part_bytes=1024, snapshot_pause_ms=0)
LEVELS = 3
TIMERS = Live(TimerSettings(batch_messages=4, roll_window_s=2))
HOST = pack_host("10.0.0.2", 10911)
GATHER_MS = 5  # so long does a replica gather what it makes visible
QUEUES = 2
SEEDS = range(3)
DUE = 6  # where a row of the ledger says when a batch is due, which is the master's own affair

_MAGIC = {magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2)}

State = Mapping[Any, Any]


class Replay:
    """The slow one: `states` of all residents from the log's bytes up to an offset, of which dispatch has seen so much."""

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self._encoded = encoded  # all records, in order

    def states(self, end_offset: int, dispatched: int | None = None) -> dict[str, State]:
        metadata, pop, transactions = MetadataTables(), PopLedger(), OpenTransactions()
        placements = PlacementTable(Handovers())
        journals: dict[str, Table] = {METADATA_TOPIC: metadata, PLACEMENTS_TOPIC: placements, POP_TOPIC: pop}
        timers, entries, timers_appended = TimerTable(), [], 0
        journals[TIMERS_TOPIC] = timers
        journals[TIERS_TOPIC] = tiers = TierTable()
        waiting = [0] * LEVELS
        for encoded in self._encoded:
            record = decode_record(encoded)
            after = record.physical_offset + record.size
            if after > end_offset:
                break
            if record.topic in journals:
                kind, body, _ = decode_log_record(encoded)
                if (record.topic, kind) == (TIMERS_TOPIC, FENCE):
                    assert body["before"] == timers_appended, "the fence knows all that is in front of it"
                if kind != SNAPSHOT:
                    journals[record.topic].apply(kind, body, after)
            elif record.topic == HALF_TOPIC:
                transactions.apply_half(half_of(record, record.property_map()))
            elif record.topic == OP_TOPIC:
                transactions.apply_done(done_offsets(record))
            elif record.topic == SCHEDULE_TOPIC and (dispatched is None or after <= dispatched):
                waiting[record.queue_id] += 1
            elif record.topic == TIMER_TOPIC:
                timers_appended += 1
                if dispatched is None or after <= dispatched:
                    entries.append(timer_code(record.properties, record.store_timestamp_ms))
        done = metadata.offsets.get((SCHEDULE_GROUP, SCHEDULE_TOPIC), {})
        return {
            "metadata": _of_tables(metadata),
            "placements": _of_placements(placements),
            "pop": _of_ledger(pop),
            "transactions": _of_transactions(transactions),
            "schedule": {n: (done.get(n, 0), max(0, end - done.get(n, 0))) for n, end in enumerate(waiting)},
            "timers": _timers(timers, list(enumerate(entries))),
            "tiers": _of_tiers(tiers),
        }


def _of_tables(tables: MetadataTables) -> State:
    rows = [[sorted(each) if isinstance(each, list) else each for each in row] for row in tables.snapshot_rows()]
    return {"rows": sorted(map(orjson.dumps, rows))}


def _of_placements(table: PlacementTable) -> State:
    return {"rows": sorted(map(orjson.dumps, table.snapshot_rows()))}


def _of_ledger(ledger: PopLedger) -> State:
    rows = [row if row[0] == "q" else [*row[:DUE], *row[DUE + 1 :]] for row in ledger.snapshot_rows()]
    return {"rows": sorted(map(orjson.dumps, rows))}


def _of_transactions(table: OpenTransactions) -> State:
    return {
        "open": [(half.first, half.queue_offset, half.physical_offset, half.checks, half.unique_key) for half in table],
        "bytes": table.size_bytes,
    }


def _timers(table: TimerTable, entries: Sequence[tuple[int, int]]) -> State:
    """With the entries (queue offset, code) that are not done with."""
    pending = [(offset, code) for offset, code in entries if not table.done.has(key_of(code, offset))]
    return {"rows": sorted(map(orjson.dumps, table.snapshot_rows())), "pending": pending}


def _of_timers(core: BrokerCore) -> State:
    low, end = core.record_log.queue_range(TIMER_TOPIC, 0)
    units: list[Unit] = []
    while low + len(units) < end:
        units += core.record_log.read_units(TIMER_TOPIC, 0, low + len(units), end)
    return _timers(core.timers.table, [(offset, code) for offset, (_, _, code) in enumerate(units, low)])


def _of_tiers(table: TierTable) -> State:
    return {"rows": sorted(map(orjson.dumps, table.snapshot_rows()))}


def _of_schedule(core: BrokerCore) -> State:
    offsets = core.schedule.offsets()
    return {each.level - 1: (offsets[each.level], each.waiting) for each in core.schedule.state().levels}


STATES: Mapping[str, Callable[[BrokerCore], State]] = {
    "metadata": lambda core: _of_tables(core.metadata.tables),
    "placements": lambda core: _of_placements(core.placements.table),
    "pop": lambda core: _of_ledger(core.pop.ledger),
    "transactions": lambda core: _of_transactions(core.transactions.table),
    "schedule": _of_schedule,
    "timers": _of_timers,
    "tiers": lambda core: _of_tiers(core.tiers.table),
}


def states(core: BrokerCore) -> dict[str, State]:
    return {name: STATES[name](core) for name in Residents._fields}


def resident(core: BrokerCore, name: str) -> Resident:
    found: Resident = getattr(core, name)
    return found


class Broker(AloneBroker):
    """One with small files; a replica until `become`."""

    def __init__(self, turns: Turns, disk: MemoryDisk | None = None) -> None:
        super().__init__(disk or MemoryDisk(), turns, STORE, HOST, journal=JOURNAL, delays=DELAYS, timers=TIMERS)
        self.settle()

    @property
    def end_offset(self) -> int:
        return self.core.store.commitlog.end_offset

    def become(self, role: Role, epoch: int = 1) -> None:
        self.replica.become(role, epoch)

    def settle(self) -> None:
        """What is confirmed is dispatched."""
        self.replica.on_appended(self.replica.confirm_offset)
        self.turns.run(GATHER_MS)

    def records(self) -> Iterator[bytes]:
        """The log from its first byte to its last, record by record."""
        log = self.core.store.commitlog
        offset = log.min_offset
        while offset < log.end_offset:
            record = log.record_at(offset)
            if record is None or record[4:8] not in _MAGIC:  # the blank rest of a file
                offset += FILE_BYTES - offset % FILE_BYTES
            else:
                yield record
                offset += len(record)

    def copy_from(self, source: Broker, end_offset: int) -> None:
        """Get the log's bytes up to there, as a replica does; nothing of them is confirmed."""
        log, store = source.core.store.commitlog, self.core.store
        while self.end_offset < end_offset:
            store.append_replicated(self.end_offset, log.read(self.end_offset, min(4096, end_offset - self.end_offset)))

    def confirm(self, offset: int) -> None:
        self.replica.on_appended(offset)
        self.turns.run(GATHER_MS)

    def truncate(self, offset: int) -> None:
        self.replica.confirm_offset = min(self.replica.confirm_offset, offset)
        self.core.store.truncate(offset)
        self.turns.run()  # what is large is read again in many turns

    def restart(self) -> Broker:
        """Stop in order, and start on the same disk, as a replica."""
        self.core.close()
        self.turns.run()
        self.core.store.close()
        return Broker(self.turns, self.disk)

    def remove_files(self) -> int:
        """Retention: the files go that nobody holds; returns how many."""
        store = self.core.store
        store.mark_flushed(store.sync())
        removed = sum(age.end <= store.held_offset() for age in store.file_ages()[:-1])
        for remove in store.apply_retention(RetentionDecision(removed, refuse=False)):
            remove()
        return removed


class Life:
    """What clients do to a master, by chance."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.rng = Random(seed)
        self.boundaries: list[int] = []  # ends of the log between two steps
        self._halves: list[SendOutcome] = []
        self._handles: list[str] = []
        self._timers: list[Recalled] = []
        self._count = self._set_back = 0
        self._put_topic("T")
        broker.core.metadata.put_group(GroupConfig("g"), lambda _: None)
        broker.turns.run(10)

    def live(self, steps: int) -> None:
        what: Sequence[Callable[[], None]] = (
            self._send, self._send, self._send_later, self._begin, self._end, self._end, self._pop, self._finish, self._finish,
            self._commit, self._change_topics, self._place, self._wait, self._set_timer, self._recall, self._upload,
            self._set_clock_back,
        )  # fmt: skip
        for _ in range(steps):
            self.rng.choice(what)()
            self.broker.turns.run(1)
            self.boundaries.append(self.broker.end_offset)

    def leave_open(self) -> None:
        """Something is delayed, in a transaction and in flight."""
        self._send_later()
        self._set_timer()
        self._begin()
        self._send()
        self._pop()

    def _send(self, topic: str = "T", sys_flag: int = 0, **properties: str) -> SendOutcome:
        self._count += 1
        encoded = encode_properties({"UNIQ_KEY": f"K{self._count}", **properties})
        body = b"%d" % self._count + bytes(self.rng.randrange(400))
        now_ms = self.broker.turns.wall_ms()
        outcomes: list[SendOutcome] = []
        self.broker.core.sender.send(
            [Draft(topic, self.rng.randrange(QUEUES), body, encoded, now_ms, HOST, sys_flag=sys_flag)], outcomes.extend
        )
        self.broker.turns.run()
        assert outcomes[0].status is PutStatus.PUT_OK, outcomes
        return outcomes[0]

    def _send_later(self) -> None:
        self._send(DELAY=str(self.rng.randrange(1, LEVELS + 1)))

    def _set_timer(self) -> None:
        self._count += 1
        timers, record_log = self.broker.core.timers, self.broker.core.record_log
        timers.follow_clock()
        due_ms = max(timers.least_due_ms, timers.now_ms() + self.rng.choice((200, 900, 3500)))
        leg_ms = leg_before(due_ms, timers.now_ms(), timers.least_due_ms, timers.window_ms)
        key = f"K{self._count}"
        properties = {"UNIQ_KEY": key, REAL_TOPIC: "T", REAL_QUEUE: "0", DUE_MS: str(due_ms)}
        properties |= {} if leg_ms is None else {LEG_MS: str(leg_ms)}
        message = Draft(TIMER_TOPIC, 0, b"later", encode_properties(properties), self.broker.turns.wall_ms(), HOST)
        (place,) = record_log.append_placed([message])
        self._timers.append(Recalled("T", key, place.queue_offset, due_ms))

    def _set_clock_back(self) -> None:
        """At most twice: what waits is so much later."""
        if self._set_back < 2 and self.broker.core.timers.counters.delivered:
            self._set_back += 1
            self.broker.turns.set_wall_clock(-BOUND_MS - 20_000)
            self.broker.core.timers.follow_clock()

    def _recall(self) -> None:
        if self._timers:
            timer = self._timers.pop(self.rng.randrange(len(self._timers)))
            assert self.broker.core.timers.recall_key()
            self.broker.core.timers.recall(timer, lambda _: None)

    def _upload(self) -> None:
        """As if it were in a tier now, or not any more."""
        tiers, queue = self.broker.core.tiers, Queue("T", self.rng.randrange(QUEUES))
        segments = tiers.segments_of(queue)
        first, end = segments.end, segments.end + self.rng.randrange(1, 50)
        sizes = 100 * (end - first), 100 * (end - first)
        segment = Segment(first, end, segments.message_end, *sizes, 1, 2, self.broker.end_offset, 1, self._count, 3, 4)
        change = self.rng.choice(
            [committed(queue, segment)] * 4 + [expired(queue, max(0, first - 60)), cut(queue, max(0, first - 20))]
        )
        self._count += 1
        tiers._journal.append(*changed(Position(1, self._count), [change]))

    def _begin(self) -> None:
        self._halves.append(self._send(sys_flag=SYS_TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP="pg"))

    def _end(self) -> None:
        if self._halves:
            half = self._halves.pop(self.rng.randrange(len(self._halves)))
            outcome = self.rng.choice((Outcome.COMMIT, Outcome.ROLLBACK))
            request = EndTransaction("pg", half.queue_offset, half.physical_offset, outcome)
            self.broker.core.transactions.end(request, lambda _: None, anybody_may)

    def _pop(self) -> None:
        def done(outcome: PopOutcome) -> None:
            self._handles += [message.receipt_handle for message in outcome.messages]

        count, invisible_ms = self.rng.choice((1, 3, 16)), self.rng.choice((500, 3000, 10_000))
        self.broker.core.pop.pop(PopRequest("g", "T", -1, count, invisible_ms, 0), done)

    def _finish(self) -> None:
        if self._handles:
            handle = self._handles.pop(self.rng.randrange(len(self._handles)))
            if self.rng.random() < 0.2:
                self.broker.core.pop.change_invisible_time("g", "T", handle, 2000, lambda _: None)
            else:
                self.broker.core.pop.ack("g", "T", [handle], lambda _: None)

    def _commit(self) -> None:
        self.broker.core.metadata.commit_offset("pull", "T", self.rng.randrange(QUEUES), self._count, None)

    def _change_topics(self) -> None:
        name = f"T{self.rng.randrange(3)}"
        if name in self.broker.core.metadata.tables.topics:
            self.broker.core.metadata.delete_topic(name, lambda _: None)
        else:
            self._put_topic(name)
            self._send(name)

    def _place(self) -> None:
        """The controllers propose a placement, or bring what is prepared into force, or give it up."""
        placements, now_ms = self.broker.core.placements, self.broker.turns.wall_ms()
        known = placements.table.topics.get("T", TopicState())
        active, proposed = known.active, None
        if known.proposed is not None:
            active = self.rng.choice((active, known.proposed))
        else:
            names = (ANOTHER, OWN)[self.rng.randrange(2) :]
            shares = tuple(ShareFact(name, self.rng.randrange(1, QUEUES + 1)) for name in names)
            proposed = PlacementFact(now_ms, shares)  # versions only grow
        fact = TopicPlacement("T", now_ms, _fact(active), proposed, (OWN,) if proposed else ())
        placements.take(PlacementNews(now_ms, now_ms, (fact,), is_placing=True), lambda: None)
        handovers = placements.handovers.of("T")
        if len(handovers) > 2:
            placements.prune("T", handovers[0].version)

    def _put_topic(self, name: str) -> None:
        self.broker.core.metadata.put_topic(TopicConfig(name, QUEUES, QUEUES), lambda _: None)

    def _wait(self) -> None:
        self.broker.turns.run(self.rng.choice((50, 700, 3000)))


def _fact(placement: Placement | None) -> PlacementFact | None:
    if placement is None:
        return None
    return PlacementFact(placement.version, tuple(ShareFact(*share) for share in placement.shares))


class Story:
    """A master that lived, and the replay of its log."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.turns = Turns()
        self.master = Broker(self.turns)
        self.master.become(Role.MASTER)
        self.life = Life(self.master, seed)
        self.life.live(500)
        self.life.leave_open()
        self.master.settle()
        self.replay = Replay(list(self.master.records()))
        self.end_offset = self.master.end_offset

    def replica(self, end_offset: int | None = None, confirmed: int | None = None) -> Broker:
        """One with the log up to there, of which so much is confirmed; both all of it by default."""
        replica = Broker(self.turns)
        end_offset = self.end_offset if end_offset is None else end_offset
        replica.copy_from(self.master, end_offset)
        replica.become(Role.REPLICA)
        replica.confirm(end_offset if confirmed is None else confirmed)
        return replica


@pytest.fixture(params=SEEDS)
def story(request: pytest.FixtureRequest) -> Story:
    return Story(request.param)


def test_a_master_has_what_it_appended(story: Story) -> None:
    expected = story.replay.states(story.end_offset)
    assert states(story.master.core) == expected
    assert expected["transactions"]["open"], "the story is about something"
    assert any(waiting for _, waiting in expected["schedule"].values())
    assert all(done for done, _ in expected["schedule"].values())
    assert len(expected["pop"]["rows"]) > QUEUES
    counters = story.master.core.timers.counters
    assert expected["timers"]["pending"]
    assert any(b'"f"' in row for row in expected["timers"]["rows"]), "a fence"
    assert min(counters.delivered, counters.rolled, counters.recalled) > 0


def test_who_follows_has_what_was_dispatched(story: Story) -> None:
    replica = Broker(story.turns)
    replica.become(Role.REPLICA)
    for end_offset in [*sorted(story.rng.sample(story.life.boundaries, 12)), story.end_offset]:
        replica.copy_from(story.master, end_offset)
        replica.confirm(story.rng.choice((end_offset, end_offset, max(0, end_offset - 700))))
        assert states(replica.core) == story.replay.states(replica.core.store.dispatch_offset)
    replica.confirm(story.end_offset)
    assert states(replica.core) == states(story.master.core)


def test_a_cut_takes_back_what_is_behind_it(story: Story) -> None:
    replica = story.replica()
    for end_offset in sorted(story.rng.sample(story.life.boundaries, 12), reverse=True):
        replica.truncate(end_offset)
        story.turns.run()  # tables are read again in slices
        assert states(replica.core) == story.replay.states(end_offset), f"cut at {end_offset}"
    replica.copy_from(story.master, story.end_offset)
    replica.confirm(story.end_offset)
    assert states(replica.core) == states(story.master.core), "and it goes on from there"


def test_a_start_reads_it_all_from_the_log(story: Story) -> None:
    replica = story.replica(confirmed=story.rng.choice(story.life.boundaries))
    for _ in range(2):
        replica = replica.restart()
        assert states(replica.core) == story.replay.states(replica.core.store.dispatch_offset)
        replica.become(Role.REPLICA)
        replica.confirm(story.end_offset)
        assert states(replica.core) == story.replay.states(story.end_offset)


@pytest.mark.parametrize("name", Residents._fields)
def test_nobody_needs_what_lies_before_the_position_it_holds(story: Story, name: str) -> None:
    """Nor does a start without the older files."""
    held = resident(story.master.core, name).held_offset()
    assert held is not None
    assert 0 < held < story.end_offset, "it holds something, but not the whole log"
    expected = story.replay.states(story.end_offset)[name]
    assert story.master.remove_files() > 0
    assert STATES[name](story.master.core) == expected
    story.life.live(100)
    expected = states(story.master.core)[name]
    again = story.master.restart()
    again.become(Role.REPLICA)
    again.confirm(again.end_offset)
    assert STATES[name](again.core) == expected


def test_a_new_file_lets_older_ones_go(story: Story) -> None:
    """A snapshot is written in each file: what is held lies in the last two, unless something waits or is open for longer."""
    for name in ("metadata", "pop"):
        held = resident(story.master.core, name).held_offset()
        assert held is not None
        assert held >= story.end_offset - 2 * FILE_BYTES
    kinds = [decode_log_record(each).kind for each in story.master.records() if decode_record(each).topic == POP_TOPIC]
    assert kinds.count(SNAPSHOT) >= story.end_offset // FILE_BYTES


def test_a_new_master_begins_with_snapshots(story: Story) -> None:
    heir = story.replica()
    heir.become(Role.MASTER, 2)
    heir.settle()
    heir.turns.run(2000)  # what can be large is not written before what comes first
    heir.settle()
    for name in ("metadata", "pop"):
        held = resident(heir.core, name).held_offset()
        assert held is not None
        assert held >= story.end_offset


def test_a_new_master_has_all_that_its_log_holds_and_an_old_one_what_was_confirmed(story: Story) -> None:
    for end_offset in story.rng.sample(story.life.boundaries, 4):
        confirmed = max(each for each in (0, *story.life.boundaries) if each <= max(0, end_offset - 3000))
        heir = story.replica(end_offset, confirmed)
        dispatched = heir.core.store.dispatch_offset
        heir.become(Role.MASTER, 2)
        appended_from = heir.end_offset
        assert states(heir.core) == story.replay.states(appended_from, dispatched), "also of what is not confirmed"
        life = Life(heir, end_offset)
        life.live(30)
        heir.settle()
        own = Replay(list(heir.records()))
        assert states(heir.core) == own.states(heir.end_offset)
        confirmed = heir.end_offset
        with patch.object(heir.replica, "on_appended"):  # nobody confirms what it appends now
            life.live(10)
            assert heir.end_offset > confirmed
            heir.become(Role.FENCED, 2)
            heir.become(Role.REPLICA, 3)
            if story.rng.random() < 0.5:  # else it is the master again before its tables are read again
                story.turns.run()
                assert states(heir.core) == own.states(confirmed), "what it appended alone may be cut"
            heir.truncate(confirmed)
        if story.rng.random() < 0.5:
            story.turns.run()
            assert states(heir.core) == own.states(confirmed)
        heir.become(Role.MASTER, 4)
        assert states(heir.core) == own.states(confirmed)
        Life(heir, end_offset + 1).live(20)
        heir.settle()
        assert states(heir.core) == Replay(list(heir.records())).states(heir.end_offset)


def test_who_steps_down_serves_nobody_and_waits_for_nothing(story: Story) -> None:
    story.master.become(Role.FENCED, 1)
    story.turns.run(1000)  # commits that waited for their record are refused, and the files of timers are followed
    end_offset, waiting = story.end_offset, story.turns.waiting
    story.turns.run(120_000)
    assert (story.master.end_offset, story.turns.waiting) == (end_offset, waiting)
    assert waiting == 0


def test_a_master_that_closes_records_what_is_pending_and_waits_for_nothing(story: Story) -> None:
    answers: list[object] = []
    outcomes: list[PopOutcome] = []
    story.master.core.metadata.commit_offset("pull", "T", 0, 4711, answers.append)
    deadline_ms = story.turns.monotonic_ms() + 60_000
    story.master.core.pop.pop(PopRequest("g", "T", -1, 1, 1000, deadline_ms, expression="never"), outcomes.append)
    assert (answers, outcomes) == ([], [])
    story.master.core.close()
    assert answers == [None]
    assert [outcome.status for outcome in outcomes] == [PopStatus.REFUSED]
    story.turns.run()
    assert story.turns.waiting == 0
    assert Replay(list(story.master.records())).states(story.master.end_offset) == states(story.master.core)
