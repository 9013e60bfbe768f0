"""Broken rules of POP: of what comes again, in which order, how often, and of what leaves. `cluster_mutants` has those of answers
and leases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from brokerd.metadata.configs import BY_MESSAGE_GROUP
from brokerd.pop import departures, giving
from brokerd.pop.batch import MAX_BATCH, Batch, Older, Place, Queue
from brokerd.pop.blocks import Block, DueRow, Fired
from brokerd.pop.departures import Departures
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order import passing
from brokerd.pop.order.passed import Passed
from brokerd.pop.order.under_way import UnderWay
from brokerd.pop.queue_ledger import Again, Blocked, Fresh, OrderedPlan, QueueLedger
from brokerd.pop.reviver import Reviver
from brokerd.pop.timers import DueRows
from brokerd.store.draft import Draft
from brokerd.store.unit import Unit
from remoting.record.codec import Record
from tests.sim.mutants import Mutant, full, scenario
from tests.support.memory_log import MemoryRecordLog
from tests.support.pop_broker import PopBroker, master
from tests.unit.brokerd.pop import test_departures, test_masters, test_moving_in_order, test_ordered, test_returning

_ordered_plan = QueueLedger.ordered_plan
_first_of = QueueLedger._first_of
_give_back = Batch.give_back
_resume = PopLedger.resume
_look = Reviver._look
_fire = Block.fire
_released_of = departures.released_of


def _nothing_is_let_go(_places: Iterable[tuple[str, Iterable[Older]]]) -> list[list[object]]:
    return []


def _let_go_of_all(places: Iterable[tuple[str, Iterable[Older]]]) -> list[list[object]]:
    """With a message, its whole batch: what was not taken of it is nobody's."""
    return [[*entry[:3], (1 << MAX_BATCH) - 1] for entry in _released_of(places)]


def _first_delivery(self: Batch, place: int) -> int:
    return 1


def _go_on(self: QueueLedger, attempt_id: str, now_ms: int, count: int = 32) -> OrderedPlan:
    """An ordered queue goes on while its earliest message is with a client."""
    plan = _ordered_plan(self, attempt_id, now_ms, count)
    return Fresh() if isinstance(plan, Blocked) else plan


def _wait_for_all(self: QueueLedger, attempt_id: str, now_ms: int, count: int = 32) -> OrderedPlan:
    """A later message that is with a client holds back earlier ones."""
    if any(batch.due_ms > now_ms for batch in self.batches.values()):
        return Blocked()
    return _ordered_plan(self, attempt_id, now_ms, count)


def _take_any_again(self: QueueLedger, attempt_id: str, now_ms: int, count: int = 32) -> OrderedPlan:
    """What expired is given again although something before it is with a client."""
    places = [
        Place(batch, place, batch.deliveries(place) + 1)
        for batch in self.batches.values()
        if batch.may_come_again(now_ms)
        for place in batch.remaining_places()
    ]
    places.sort(key=lambda place: place.offset)
    return Again(places[:count]) if places else _ordered_plan(self, attempt_id, now_ms, count)


def _nobody_waits(self: object, group: int) -> bool:
    """New messages are taken although their message group has something with a client."""
    return False


def _all_know_theirs(self: QueueLedger) -> bool:
    """What was taken before the group had an order is not waited for."""
    return True


def _own_in_any_case(self: QueueLedger, pop_times: Iterable[int], waiting: Collection[int]) -> Iterator[Place]:
    return _first_of(self, pop_times, ())


def _forget_passed_over(self: PopLedger, now_ms: int, lease_grace_ms: int, inherited_lease_ms: int) -> None:
    """A new master goes on behind what its predecessor passed over."""
    for queue in self.queues():
        for batch in list(queue.batches.values()):
            if batch.is_passed_over:
                self._finish_batch(queue, batch, batch.remaining)
    _resume(self, now_ms, lease_grace_ms, inherited_lease_ms)


def _keep_for_ever(self: PopLedger, batch: Batch) -> None:
    """What came back is given to nobody."""
    batch.lease_end_ms = 0


def _keep_rows_for_ever(self: PopLedger, due: DueRows) -> int:
    return 0


def _come_back_all(self: Reviver, queue: Queue, rows: list[DueRow]) -> tuple[list[DueRow], list[DueRow]]:
    """Singles come again whatever became of their messages."""
    return rows, []


def _fire_those_at_once(self: Block, now_ms: int, limit: int) -> Fired:
    """What is due and has no room in a turn is forgotten."""
    fired = _fire(self, now_ms, limit)
    self.near = [each for each in self.near if each[0] > now_ms]
    return fired


def _resume_without_timers(self: PopLedger, now_ms: int, lease_grace_ms: int, inherited_lease_ms: int) -> None:
    self._timers.clear()


def _nothing_is_stored_yet(self: Departures, target: str, since: int) -> list[Record]:
    return []


def _only_what_is_confirmed(self: MemoryRecordLog, topic: str) -> list[Unit]:
    return (
        [] if topic.startswith("%") else [unit for name, queue_id, unit in self._tail if (name, queue_id) == (topic, 0)]
    )


def _all_are_missing(drafts: Sequence[Draft], stored: Sequence[Record], since: int) -> list[Draft]:
    """Equal messages count as one."""
    return [draft for draft in drafts if not any(record.body == draft.body for record in stored)]


def _handles_stay(self: Batch) -> None:
    """Who held a lease may still finish what waits for others."""
    lease_end_ms = self.lease_end_ms
    _give_back(self)
    self.lease_end_ms = lease_end_ms


def _never_over(self: Reviver, batch: Batch) -> object:
    look = _look(self, batch)
    return look._replace(over=0)


def _in_order(test: Callable[[PopBroker], None]) -> None:
    """A test of an ordered group."""
    broker = master()
    broker.group("g", fifo=True)
    test(broker)


MUTANTS = (
    Mutant(
        "pop: a returned message is given to two",
        "POP",
        "A pop that takes a message again does not let go of its older place.",
        ((giving, "released_of", _nothing_is_let_go),),
        full("calm"),
        within=10,
    ),
    Mutant(
        "pop: with one message goes its whole batch",
        "POP",
        "A pop that takes a part of a batch again lets go of all of it.",
        ((giving, "released_of", _let_go_of_all),),
        full("calm"),
        within=10,
        first=1,
    ),
    Mutant(
        "pop: deliveries are not counted",
        "POP",
        "What comes again looks like a first delivery.",
        ((Batch, "deliveries", _first_delivery),),
        full("calm"),
        within=10,
    ),
    Mutant(
        "pop: an ordered queue goes on",
        "POP",
        "An ordered queue gives more while its earliest message is with a client.",
        ((QueueLedger, "ordered_plan", _go_on),),
        full("calm"),
        within=10,
    ),
    Mutant(
        "pop: a later message holds back earlier ones",
        "POP",
        "A message that was postponed holds back what expired before it in an ordered queue.",
        ((QueueLedger, "ordered_plan", _wait_for_all),),
        scenario(_in_order, test_ordered.test_a_later_postponed_message_does_not_hold_back_earlier_ones),
        within=1,
    ),
    Mutant(
        "pop: what expired overtakes",
        "POP",
        "What expired in an ordered queue is given again although something before it is with a client.",
        ((QueueLedger, "ordered_plan", _take_any_again),),
        scenario(_in_order, test_ordered.test_only_what_nothing_before_it_is_with_a_client_comes_again),
        within=1,
    ),
    Mutant(
        "pop: a message group does not wait",
        "POP",
        "A new message is taken although an earlier one of its message group is with a client.",
        ((passing.Passing, "_is_waiting", _nobody_waits),),
        full("calm", ingredients=("message groups",)),
        within=4,
    ),
    Mutant(
        "pop: what came before the order is not waited for",
        "POP",
        "A message is given although an earlier one of its message group was taken before the group had an order.",
        ((QueueLedger, "keeps_groups", property(_all_know_theirs)),),
        full("calm", ingredients=("message groups",)),
        within=4,
        first=1,
    ),
    Mutant(
        "pop: what was passed over is forgotten at a switch",
        "POP",
        "A new master does not know the messages whose message group waited.",
        ((PopLedger, "resume", _forget_passed_over),),
        full("processes", ingredients=("message groups",)),
        within=20,
    ),
    Mutant(
        "pop: what came back stays",
        "POP",
        "Messages that were not finished in time are given to nobody.",
        ((PopLedger, "give_back", _keep_for_ever), (PopLedger, "give_back_rows", _keep_rows_for_ever)),
        full("calm"),
        within=10,
    ),
    Mutant(
        "pop: rows that came back stay",
        "POP",
        "Messages that were not finished in time, and of which nothing has to be read, are given to nobody.",
        ((PopLedger, "give_back_rows", _keep_rows_for_ever),),
        full("calm"),
        within=10,
    ),
    Mutant(
        "pop: rows come back whatever their count",
        "POP",
        "A message that is a row of its own, and was delivered as often as allowed, comes again.",
        ((Reviver, "_divided", _come_back_all),),
        scenario(test_returning.test_the_attempts_are_limited_and_the_dead_letter_names_its_origin),
        within=1,
    ),
    Mutant(
        "pop: what has no room in a turn stays",
        "POP",
        "Of many messages that are due at once only those come again that a turn has room for.",
        ((Block, "fire", _fire_those_at_once),),
        scenario(test_returning.test_singles_that_are_due_at_once_come_back_in_slices_but_for_what_must_not),
        within=1,
    ),
    Mutant(
        "pop: a new master sets no timers",
        "POP",
        "What was with clients when the master changed never comes again.",
        ((PopLedger, "resume", _resume_without_timers),),
        full("processes"),
        within=20,
    ),
    Mutant(
        "pop: a returned lease is finished by its handle",
        "POP",
        "The handle of a lease that is over is good until somebody else has the message.",
        ((Batch, "give_back", _handles_stay),),
        scenario(test_masters.test_the_handle_of_a_lease_that_ended_is_worth_nothing_while_its_message_waits),
        within=1,
    ),
    Mutant(
        "pop: copies are not looked for",
        "POP",
        "A new master copies a dead letter that its predecessor has copied.",
        ((Departures, "_stored_since", _nothing_is_stored_yet),),
        scenario(test_departures.test_a_master_may_die_at_any_record, test_departures.dead_letters, "all"),
        within=1,
    ),
    Mutant(
        "pop: copies that are not confirmed are not looked for",
        "POP",
        "A new master looks for copies only where consumers may look.",
        ((MemoryRecordLog, "undispatched_units", _only_what_is_confirmed),),
        scenario(test_departures.test_a_master_may_die_at_any_record, test_departures.dead_letters, "half"),
        within=1,
    ),
    Mutant(
        "pop: equal dead letters are one",
        "POP",
        "Of two equal messages that leave, the copy of one is taken for that of both.",
        ((departures, "_missing", _all_are_missing),),
        scenario(test_departures.test_a_master_may_die_at_any_record, test_departures.dead_letters, "all"),
        within=1,
    ),
    Mutant(
        "pop: copies under way are not waited for",
        "POP",
        "An ordered group goes on while what came before is in the log, as a copy, and not in its queue yet.",
        ((UnderWay, "may_come", lambda self, name, group, topic: False),),
        scenario(
            test_moving_in_order.test_what_stayed_waits_for_copies_that_are_not_in_their_queue_yet, BY_MESSAGE_GROUP
        ),
        within=1,
    ),
    Mutant(
        "pop: a message group passes its copies",
        "POP",
        "Of a message group of which something moved to the retry topic, what stayed is given before that is finished.",
        ((Passed, "groups_with_copies", lambda self, group, topic: frozenset()),),
        scenario(test_moving_in_order.test_one_message_that_moved_holds_up_its_own_message_group_alone),
        within=1,
    ),
    Mutant(
        "pop: a repeated attempt passes copies",
        "POP",
        "A repeated attempt gets its messages again before what moved to the retry topic from before them is finished.",
        ((QueueLedger, "_first_of", _own_in_any_case),),
        scenario(test_moving_in_order.test_a_repeated_attempt_gets_what_stayed_after_what_moved, BY_MESSAGE_GROUP),
        within=1,
    ),
    Mutant(
        "pop: a new master knows of no copies",
        "POP",
        "A new master does not wait for what its predecessor copied and it has not dispatched.",
        ((UnderWay, "begin", lambda self, end_offset: None),),
        scenario(test_moving_in_order.test_a_new_master_waits_for_copies_of_the_one_before, BY_MESSAGE_GROUP),
        within=1,
    ),
    Mutant(
        "pop: attempts have no limit",
        "POP",
        "A message that was delivered as often as allowed comes again.",
        ((Reviver, "_look", _never_over),),
        scenario(test_returning.test_the_attempts_are_limited_and_the_dead_letter_names_its_origin),
        within=1,
    ),
)
