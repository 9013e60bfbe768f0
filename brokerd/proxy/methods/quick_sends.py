"""Ordinary sends, from the bytes of their requests to the kernel, with no message and no draft made of them.

What is not ordinary, and what other broker groups own, is for the method to do (`send_message.py`), after
these: so of the messages of message groups in a batch, all are left from the first on that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from brokerd.metadata.configs import Metadata, TopicConfig
from brokerd.metadata.names import check_topic_name
from brokerd.proxy.calls import Call
from brokerd.proxy.frame_offers import FrameAnswers, FrameOffer, FramePart, Left, StoredFrame
from brokerd.proxy.mapping import MIXED_TYPES, TYPE_NAMES
from brokerd.proxy.methods.base import CLIENT_ID
from brokerd.proxy.methods.placing import Placing
from brokerd.proxy.native_sends import GROUPED, HALF, PRIORITIZED, QUEUE_DIGITS, TYPES, SendReader
from brokerd.proxy.status import OK, encode_length
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.turns import SendTurns
from brokerd.store.put_status import PutStatus
from brokerd.transactions.ids import SECRET_LENGTH, TransactionId
from remoting.errors import InvalidParameter, RequestError
from remoting.facts.placements import MESSAGE_TYPES
from remoting.message_groups import queue_of_group
from remoting.names import is_system_topic

_ID: Final = b"\x12"  # field 2 of an entry of the answer
_TRANSACTION: Final = b"\x1a"  # field 3
_OFFSET: Final = b"\x20"  # field 4
_HANDLE: Final = b"\x2a"  # field 5
_ENTRY: Final = b"\x12"  # field 2 of the answer

# The answer to a call whose message, of that id, was not stored, or not as it should, with the id of the transaction if one began
Answer = Callable[[Call, str, SendOutcome, str], None]


class Quick(NamedTuple):
    """What ordinary sends are carried out with."""

    reader: SendReader
    turns: SendTurns


class QuickSends:
    """Those of one broker group; `answer` answers what was not stored as it should be."""

    def __init__(
        self,
        quick: Quick,
        metadata: Metadata,
        broker_name: str,
        placing: Placing,
        new_secret: Callable[[], str],
        answer: Answer,
    ) -> None:
        self._reader, self._turns = quick
        self._metadata = metadata
        self._broker_name = broker_name
        self._placing = placing
        self._new_secret = new_secret
        self._answer = answer

    def send(self, calls: Sequence[Call], now_ms: int) -> Sequence[Call]:
        """Carry out what is ordinary; the calls that are left, in order."""
        requests = [call.message for call in calls]
        frames, found = self._reader.read(requests, now_ms)
        sorting = _Sorting(self._metadata, self._broker_name, self._placing, self._new_secret)
        begin = 0
        for number, call in enumerate(calls):
            fields = found[number]
            end = fields[0]
            if not end:
                sorting.leave_groups()  # it may be of one
            elif call.metadata.get(CLIENT_ID) and sorting.takes(number, requests[number], fields, frames):
                sorting.add(number, call.peer.packed_host, begin, end, is_grouped=fields[1] == GROUPED)
            begin = end or begin
        if not sorting.taken:
            return calls
        left = Left()
        turn = self._turns.begin(partial(FrameAnswers, partial(self._done, calls, found, sorting.secrets)))
        turn.take([FrameOffer(part, left) for part in sorting.parts(frames)])
        turn.append()
        if not left.keys and len(sorting.taken) == len(calls):
            return ()
        taken = sorting.taken.difference(left.keys)
        return [call for number, call in enumerate(calls) if number not in taken]

    def _done(
        self,
        calls: Sequence[Call],
        found: Sequence[tuple[int, ...]],
        secrets: Mapping[int, str],
        stored: Sequence[StoredFrame],
        status: PutStatus,
        error: RequestError | None,
    ) -> None:
        for number, position, queue_offset, handle in stored:
            call = calls[number]
            id_at, id_length = found[number][4:6]
            message_id = call.message[id_at : id_at + id_length]
            transaction = ""
            if secrets and number in secrets and position >= 0:
                transaction = str(TransactionId(position, queue_offset, secrets[number], self._broker_name))
            if status is PutStatus.PUT_OK:
                entry = OK + _ID + encode_length(id_length) + message_id
                if transaction:
                    encoded = transaction.encode()
                    entry += _TRANSACTION + encode_length(len(encoded)) + encoded
                if queue_offset:
                    entry += _OFFSET + encode_length(queue_offset)
                if handle:
                    encoded = handle.encode()
                    entry += _HANDLE + encode_length(len(encoded)) + encoded
                call.answer(OK + _ENTRY + encode_length(len(entry)) + entry)
            else:
                self._answer(call, message_id.decode(), SendOutcome(status, -1, queue_offset, error=error), transaction)


class _Sorting:
    """Which requests of a batch are given to the kernel, as parts of one peer each."""

    def __init__(self, metadata: Metadata, broker_name: str, placing: Placing, new_secret: Callable[[], str]) -> None:
        self.taken: set[int] = set()
        self.secrets: dict[int, str] = {}  # of the transactions that begin, by the numbers of their requests
        self._new_secret = new_secret
        self._metadata = metadata
        self._broker_name = broker_name
        self._placing = placing
        self._topics: dict[bytes, TopicConfig | None] = {}
        self._parts: list[tuple[bytes, bool, int, list[int], list[int]]] = []  # peer, has groups, begin, keys, ends
        self._end = -1
        self._groups_are_left = False

    def takes(self, number: int, request: bytes, fields: tuple[int, ...], frames: bytearray) -> bool:
        """Whether the topic takes a message of this type, and this broker group its message group; its queue and the secret of a
        transaction that it begins are noted."""
        _, kind, topic_at, topic_length, _, _, group_at, group_length, queue_at, priority, secret_at = fields
        name = bytes(frames[topic_at : topic_at + topic_length])
        if name not in self._topics:
            self._topics[name] = self._config(name)
        config = self._topics[name]
        if kind != GROUPED:
            if config is None or not _takes(config, kind):
                return False
            if kind == PRIORITIZED:
                queue_id = max(0, min(priority, config.write_queue_nums - 1))
                frames[queue_at : queue_at + QUEUE_DIGITS] = b"%010d" % queue_id
            elif kind == HALF:
                secret = self.secrets[number] = self._new_secret()
                frames[secret_at : secret_at + SECRET_LENGTH] = secret.encode()
            return True
        if config is not None and _takes(config, kind) and not self._groups_are_left:
            group = request[group_at : group_at + group_length].decode()
            queue_id = queue_of_group(group, config.write_queue_nums) if config.write_queue_nums > 0 else -1
            if queue_id >= 0 and self._is_own(config, group, queue_id):
                frames[queue_at : queue_at + QUEUE_DIGITS] = b"%010d" % queue_id
                return True
        self._groups_are_left = True
        return False

    def leave_groups(self) -> None:
        """No message of a message group is taken any more."""
        self._groups_are_left = True

    def add(self, number: int, peer: bytes, begin: int, end: int, *, is_grouped: bool) -> None:
        """The request with that number is given to the kernel, as the frame from there to there."""
        self.taken.add(number)
        if self._end != begin or self._parts[-1][:2] != (peer, is_grouped):
            self._parts.append((peer, is_grouped, begin, [], []))
        _, _, first, keys, ends = self._parts[-1]
        keys.append(number)
        ends.append(end - first)
        self._end = end

    def parts(self, frames: bytearray) -> list[FramePart]:
        """All that was added."""
        return [
            FramePart(peer, is_grouped, bytes(frames[first : first + ends[-1]]), keys, ends)
            for peer, is_grouped, first, keys, ends in self._parts
        ]

    def _config(self, name: bytes) -> TopicConfig | None:
        topic = name.decode()
        try:
            check_topic_name(topic)
        except InvalidParameter:
            return None
        is_system = is_system_topic(topic) or is_system_topic(topic.partition("%")[2])  # also in a namespace
        return None if is_system else self._metadata.topic(topic)

    def _is_own(self, config: TopicConfig, group: str, queue_id: int) -> bool:
        if config.message_type not in MESSAGE_TYPES:
            return True
        owner = self._placing.owner(config.name, group)
        return owner is None or owner == (self._broker_name, queue_id)


def _takes(config: TopicConfig, kind: int) -> bool:
    taken = config.message_type
    name = TYPE_NAMES[TYPES[kind]]
    return taken == name or (taken == "MIXED" and name in MIXED_TYPES)
