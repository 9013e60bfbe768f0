"""The log in memory and the log on disk against one naive model: a table from index to entry, and what was promised.

The model knows nothing of prefixes, generations and records. After every step all terms are compared; reopening, killing and
power loss must give back at least everything that was durable, and nothing that was replaced.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from controllerd.raft.core import Compaction
from controllerd.raft.log import RaftLog
from controllerd.raft.log_file import RaftLogFile, WriteRefused
from controllerd.raft.messages import Entry, HardState, Persist, Snapshot
from controllerd.raft.quorum import Configuration
from tests.support.disks import FaultyDisk
from tests.support.examples import examples

MEMBERS = Configuration.of(("n0", "n1"))
MUST_HAPPEN = ("compaction", "cut", "snapshot of the leader", "power loss", "kill", "unwritten", "refused write")

happened: Counter[str] = Counter()


class LogModel(RuleBasedStateMachine):
    """Steps that a core makes with its log and its file; `entries` holds all that was not replaced, compacted or not."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk(random.Random(7))
        self.file = self.open_file()
        self.log: RaftLog = self.file.open().log
        self.entries: dict[int, int] = {}
        self.term = 1
        self.vote: str | None = None
        self.committed = 0
        self.kept_from = 0
        self.snapshot_index = 0

    def open_file(self) -> RaftLogFile:
        return RaftLogFile(self.disk, "g", "n0", MEMBERS.voters)

    def entry(self, index: int, term: int) -> Entry:
        return Entry(index, term, f"{term}/{index}".encode())

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        start = len(self.entries) + 1
        new = [self.entry(index, self.term) for index in range(start, start + count)]
        self.log.append(new)
        self.entries |= {entry.index: entry.term for entry in new}

    @rule(data=st.data(), written=st.integers(1, 5), count=st.integers(1, 2))
    def follow_a_new_leader(self, data: st.DataObject, written: int, count: int) -> None:
        """Entries of a later term from some place behind what is decided on; some of those that they replace were written."""
        self.append(written)
        if data.draw(st.booleans()):
            self.write(data)
        self.term += 1
        prev = data.draw(st.integers(self.committed, len(self.entries)))
        happened["cut"] += prev + count < len(self.entries)
        new = [self.entry(index, self.term) for index in range(prev + 1, prev + 1 + count)]
        assert self.log.try_append(prev, self.entries.get(prev, 0), new) == prev + count
        self.entries = {index: term for index, term in self.entries.items() if index <= prev}
        self.entries |= {entry.index: entry.term for entry in new}

    @precondition(lambda self: len(self.entries) > self.kept_from)
    @rule(data=st.data())
    def hear_something_old(self, data: st.DataObject) -> None:
        """A late or repeated append of entries that are there changes nothing."""
        prev = data.draw(st.integers(self.kept_from, len(self.entries) - 1))
        last = data.draw(st.integers(prev, len(self.entries)))
        sent = [self.entry(index, self.entries[index]) for index in range(prev + 1, last + 1)]
        assert self.log.try_append(prev, self.entries.get(prev, 0), sent) == last
        assert self.log.try_append(prev, self.term + 5, sent) is None

    @rule(vote=st.sampled_from(["n0", "n1", None]), later=st.booleans())
    def vote_for(self, vote: str | None, later: bool) -> None:
        self.term += later
        self.vote = vote

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        unstable = self.log.unstable_entries()
        written = Persist(HardState(self.term, self.vote, self.committed), None, unstable)
        if data.draw(st.integers(0, 4)) == 0:
            self.disk.fail_write_at(1)
            try:
                self.file.persist(written)
            except WriteRefused:
                happened["refused write"] += 1
            else:
                raise AssertionError("the fault did not happen")
        self.file.persist(written)
        if unstable:
            self.log.stable_to(unstable[-1].index, unstable[-1].term)

    @precondition(lambda self: self.log.stable_index > self.committed)
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        self.committed = data.draw(st.integers(self.committed + 1, self.log.stable_index))
        self.log.commit_to(self.committed)
        self.log.applied_to(self.committed)

    @rule(count=st.integers(1, 4), later=st.booleans())
    def append_write_decide(self, count: int, later: bool) -> None:
        """What happens most of the time."""
        self.term += later
        self.append(count)
        unstable = self.log.unstable_entries()
        self.file.persist(Persist(HardState(self.term, self.vote, self.committed), None, unstable))
        self.log.stable_to(unstable[-1].index, unstable[-1].term)
        self.committed = max(self.committed, self.log.last_index - 1)
        self.log.commit_to(self.committed)
        self.log.applied_to(self.committed)

    @precondition(lambda self: self.log.applied > self.snapshot_index)
    @rule(keep=st.integers(0, 5))
    def compact(self, keep: int) -> None:
        index = self.log.applied
        snapshot = Snapshot(index, self.entries[index], MEMBERS, b"state at %d" % index)
        self.log.compact(snapshot, keep)
        happened["compaction"] += self.log.compacted_index > self.kept_from
        self.snapshot_index = index
        self.kept_from = max(self.kept_from, index - keep)
        state = HardState(self.term, self.vote, self.committed)
        kept = self.log.kept_entries()
        self.file.compact(Compaction(snapshot, state, self.log.compacted_index, self.log.compacted_term, kept))

    @rule(ahead=st.integers(1, 6))
    def take_a_snapshot(self, ahead: int) -> None:
        """The leader's snapshot replaces everything here."""
        self.term += 1
        index = self.committed + ahead
        if self.log.matches(index, self.term):
            return
        happened["snapshot of the leader"] += 1
        snapshot = Snapshot(index, self.term, MEMBERS, b"state at %d" % index)
        self.log.restore(snapshot)
        self.committed = index
        self.file.persist(Persist(HardState(self.term, self.vote, self.committed), snapshot, ()))
        self.log.snapshot_restored(snapshot)
        self.entries = {place: self.entries.get(place, 0) for place in range(1, index)} | {index: self.term}
        self.kept_from = self.snapshot_index = index

    @rule(power_loss=st.booleans())
    def reopen(self, power_loss: bool) -> None:
        """The process ends after its last write, or the power does; what was written is back, what was not is gone."""
        stable, snapshot_index = self.log.stable_index, self.snapshot_index
        unwritten = self.log.unstable_entries()
        happened["power loss" if power_loss else "kill"] += 1
        happened["unwritten"] += bool(unwritten)
        self.disk.crash() if power_loss else self.disk.kill()
        self.file = self.open_file()
        recovered = self.file.open()
        self.log = recovered.log
        self.term, self.vote = max(self.term, recovered.hard_state.term), recovered.hard_state.vote
        assert (self.log.snapshot.index if self.log.snapshot else 0) == snapshot_index
        assert snapshot_index <= self.log.committed <= self.committed
        first_unwritten = unwritten[0].index if unwritten else len(self.entries) + 1
        if not unwritten:
            assert self.log.last_index == stable
        # Entries that were cut in memory and not yet overwritten on disk may be back: nobody was told that they are gone.
        for index in range(self.log.first_index, min(first_unwritten, self.log.last_index + 1)):
            assert self.log.term(index) == self.entries[index]
        assert self.log.last_index >= first_unwritten - 1
        self.entries = {index: term for index, term in self.entries.items() if index <= self.log.compacted_index} | {
            index: self.log.term(index) or 0 for index in range(self.log.first_index, self.log.last_index + 1)
        }
        self.committed = self.log.committed
        self.kept_from = self.log.compacted_index
        if self.log.committed > self.log.applied:
            self.log.applied_to(self.log.committed)

    @invariant()
    def every_term_is_right(self) -> None:
        assert self.log.compacted_index == self.kept_from
        assert self.log.last_index == len(self.entries)
        for index in range(-1, len(self.entries) + 3):
            expected = self.entries.get(index) if index > self.kept_from else None
            if index == self.kept_from:
                expected = self.entries.get(index, 0)
            assert self.log.term(index) == expected, index
        whole = self.log.slice(self.log.first_index, self.log.last_index + 1, 1 << 30)
        assert [(entry.index, entry.term) for entry in whole] == sorted(
            (index, term) for index, term in self.entries.items() if index > self.kept_from
        )
        assert self.log.stable_index <= self.log.last_index
        assert self.log.unstable_entries() == whole[max(0, self.log.stable_index - self.kept_from) :]


def test_the_log_is_what_the_model_says() -> None:
    happened.clear()
    run_state_machine_as_test(
        LogModel, settings=settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
    )
    # Chance chooses the steps; each of these happened thirty times and more under every seed that was tried.
    assert min(happened[what] for what in MUST_HAPPEN) >= 10, happened
