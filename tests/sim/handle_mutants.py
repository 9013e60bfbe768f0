"""Broken rules of who may finish a message, what is answered when it is asked again, and when a pop is answered."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from brokerd.journal.journal import Journal
from brokerd.pop import ledger, records
from brokerd.pop.batch import Batch
from brokerd.pop.claims import Claims
from brokerd.pop.giving import Giving
from brokerd.pop.ledger import PopLedger
from brokerd.store.put_status import PutStatus
from tests.sim.mutants import Mutant, scenario
from tests.unit.brokerd.pop import test_acked_again, test_guessed_handles, test_sharing

_finish_all = PopLedger._finish_all
_finish_offset = Claims.finish_offset
_give_some = Giving._give_some


def _finish_as_acked(self: PopLedger, *entries: Any, acked: bool) -> None:
    _finish_all(self, *entries, acked=True)


def _repeats_unnoticed(self: Claims, batch: Batch, offset: int) -> bool:
    is_finished = _finish_offset(self, batch, offset)
    self.has_repeats = False
    return is_finished


def _at_once(self: Journal, end_offset: int, done: Any) -> None:
    done(PutStatus.PUT_OK)


def _answer_pops_at_once(self: Giving, *arguments: Any, **options: Any) -> Any:
    with patch.object(Journal, "when_acknowledged", _at_once):
        return _give_some(self, *arguments, **options)


MUTANTS = (
    Mutant(
        "handles: the tag is not checked",
        "POP",
        "Whoever knows times and offsets finishes the messages of others.",
        ((ledger, "proves", lambda proof, tag: True),),
        scenario(test_guessed_handles.test_a_stranger_who_knows_all_but_the_tag_finishes_nothing),
        within=1,
    ),
    Mutant(
        "handles: tags are forgotten in a switch",
        "POP",
        "A new master takes handles without a tag, and none that has one.",
        ((records, "tag_of", lambda text: 0),),
        scenario(test_guessed_handles.test_tags_survive_a_switch, False),
        within=1,
    ),
    Mutant(
        "acks: what is done is forgotten",
        "POP",
        "An ack that is asked again is refused when it was the last one of its batch.",
        ((PopLedger, "_remember", lambda self, queue, pop_time_ms: queue.batches.forget(pop_time_ms)),),
        scenario(test_acked_again.test_only_what_a_client_finished_was_finished),
        within=1,
    ),
    Mutant(
        "acks: what came back counts as acked",
        "POP",
        "A late ack is answered as if it had come in time.",
        ((PopLedger, "_finish_all", _finish_as_acked),),
        scenario(test_acked_again.test_only_what_a_client_finished_was_finished),
        within=1,
    ),
    Mutant(
        "acks: a repeated one is answered at once",
        "POP",
        "An ack that is asked again is answered before the record that it repeats is acknowledged.",
        ((Claims, "finish_offset", _repeats_unnoticed),),
        scenario(test_acked_again.test_the_answer_waits_for_the_record_that_it_repeats),
        within=1,
    ),
    Mutant(
        "pop: answered at once",
        "POP",
        "Messages are given before the record that they are taken is acknowledged.",
        ((Giving, "_give_some", _answer_pops_at_once),),
        scenario(test_sharing.test_pops_of_one_turn_share_a_write_and_a_wait),
        within=1,
    ),
)
