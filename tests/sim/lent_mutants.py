"""Broken rules of lending the end of the log: what is taken beside the loop is lost, written over, answered too early, or not
seen."""

from __future__ import annotations

from typing import Any, Final

from brokerd.native.stays import Waiting
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.sending.late_answers import answer_later
from brokerd.sending.lending import SendLending
from brokerd.store.log.syncs_in_c import SyncsInC
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from brokerd.store.store import MessageStore
from remoting.transport.connection import RemotingConnection
from tests.sim.lent_groups import BESIDE
from tests.sim.mutants import Mutant, full

_THE_OTHERS: Final = ("ordered", "leaser", "transactor", "delayer", "backer", "owner", "popper")


def _nothing(*_: Any) -> None:
    return None


def _answer_at_once(self: SendLending, lender: RemotingConnection, waiting: Waiting) -> None:
    answer_later(lender, waiting, self._counters)(PutStatus.PUT_OK)
    self._soon()


def _note_log_only(self: MessageStore, run: Run) -> None:
    self.commitlog.note_appended(run.size)
    for start, entries, end in run.offers():
        self.dispatcher.offer(start, entries, end)


def _all_of_it(self: SyncsInC, durable: int) -> None:
    self._commitlog.note_synced(durable)
    self._heard()


_tell = full("mixed", ingredients=(BESIDE,), without_clients=_THE_OTHERS)

MUTANTS: Final = (
    Mutant(
        "lends what others have to have",
        "lent log",
        "A master lends the end of its log though replicas are in the set, whose acknowledgements nobody waits for then.",
        ((ReplicationDriver, "acknowledges_alone", ReplicationDriver.accepts_messages),),
        _tell,
        within=60,
        first=5,
    ),
    Mutant(
        "lends without syncs",
        "lent log",
        "What is taken beside the loop is answered when it is in the log's file, though it has to be durable.",
        ((SyncsInC, "at", 0),),
        _tell,
        within=60,
    ),
    Mutant(
        "answers what comes back",
        "lent log",
        "Answers that waited for the disk beside the loop leave when their connection comes back.",
        ((SendLending, "_wait", _answer_at_once),),
        _tell,
        within=60,
    ),
    Mutant(
        "appends while it is lent",
        "lent log",
        "The loop appends where somebody else does, and does not take the log's end back first.",
        ((MessageStore, "settle", _nothing),),
        _tell,
        within=60,
    ),
    Mutant(
        "numbers of a lent run go",
        "lent log",
        "What is taken back is noted in the log, and its queue offsets are given again.",
        ((MessageStore, "note_appended", _note_log_only),),
        _tell,
        within=60,
    ),
    Mutant(
        "does not show what was lent",
        "lent log",
        "Who was answered beside the loop asks, and is told of what the loop knew.",
        ((SendLending, "catch_up", _nothing),),
        _tell,
        within=60,
    ),
    Mutant(
        "all that is synced is known",
        "lent log",
        "The loop takes for durable what somebody wrote and had synced beside it, and what it does not know of.",
        ((SyncsInC, "_tell", _all_of_it),),
        _tell,
        within=60,
    ),
)
