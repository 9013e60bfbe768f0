"""Rules of Raft, each broken in the way in which it is easily broken, and the story that finds it.

What is broken is put in place of ours for the length of a story (`entered`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from controllerd.raft import log_file, proposals
from controllerd.raft.codec import encode_hard_state
from controllerd.raft.core import RaftCore
from controllerd.raft.leading import Leading
from controllerd.raft.log import LostLog, RaftLog
from controllerd.raft.log_file import RaftLogFile, Recovered
from controllerd.raft.messages import HardState, ReadState
from controllerd.raft.record_format import Records
from tests.unit.controllerd.raft import told


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """`patches` are (owner, attribute, replacement). `window` is what it opens, in docs/RELIABILITY.md or by name."""

    name: str
    window: str
    what: str
    patches: tuple[tuple[Any, str, Any], ...]
    story: Callable[[], None]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, attribute, replacement in self.patches:
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield


def _commit_any_term(self: Leading) -> bool:
    index = self.configuration.committed_index({node: each.match for node, each in self.progress.items()})
    if index <= self.log.committed:
        return False
    self.log.commit_to(index)
    return True


def _without_vote(hard_state: HardState) -> bytes:
    return encode_hard_state(HardState(hard_state.term, None, hard_state.commit))


def _confirm_at_once(self: Leading, read: Any) -> bool:
    self._outbox.confirm(ReadState(read.context, read.index))
    self._pending_reads = [each for each in self._pending_reads if each is not read]
    return True


_send = RaftCore._send
_open = RaftLogFile.open


def _send_at_once(self: RaftCore, *arguments: Any, **named: Any) -> None:
    _send(self, *arguments, **named)
    self._outbox.send(self._outbox.send_after_persist.pop())


def _nothing(*_: Any) -> None:
    return None


def _open_or_begin_again(self: RaftLogFile) -> Recovered:
    try:
        return _open(self)
    except LostLog:
        for name in self._disk.names("raft"):
            self._disk.remove(f"raft/{name}")
        return _open(self)


BROKEN_RULES: Final = (
    BrokenRule(
        "commit of an earlier term",
        "raft",
        "A leader counts the copies of an entry that another leader made.",
        ((Leading, "_try_commit", _commit_any_term),),
        told.an_entry_of_an_earlier_term_is_counted,
    ),
    BrokenRule(
        "vote not persisted",
        "raft",
        "A node remembers the term in which it voted, and not for whom.",
        ((log_file, "encode_hard_state", _without_vote),),
        told.a_vote_is_asked_for_again,
    ),
    BrokenRule(
        "no read barrier",
        "W17",
        "A leader answers from what it has, without a round of heartbeats.",
        ((Leading, "_release_reads", _confirm_at_once),),
        told.a_leader_that_was_deposed_is_asked,
    ),
    BrokenRule(
        "unsynced entries counted",
        "raft",
        "What a node says leaves before the write that makes it true.",
        ((RaftCore, "_send", _send_at_once),),
        told.an_answer_is_lost_with_what_it_promised,
    ),
    BrokenRule(
        "changes overlap",
        "raft",
        "A change of the membership is taken before the one before it is applied.",
        ((proposals, "_require_no_change", proposals._require_no_transfer),),
        told.a_second_change_is_asked_for,
    ),
    BrokenRule(
        "votes for a shorter log",
        "raft",
        "A voter does not look whether the candidate has what it has.",
        ((RaftLog, "is_up_to_date", lambda *_: True),),
        told.a_candidate_lacks_what_was_decided,
    ),
    BrokenRule(
        "torn rule without rot",
        "W38",
        "A damaged last record is a torn one, whatever is wrong with it.",
        ((Records, "_check_end", _nothing),),
        told.a_promise_rots,
    ),
    BrokenRule(
        "lost controller under its old id",
        "W38",
        "Who lost its log begins with an empty one and votes on.",
        ((RaftLogFile, "open", _open_or_begin_again),),
        told.a_promise_rots,
    ),
)
