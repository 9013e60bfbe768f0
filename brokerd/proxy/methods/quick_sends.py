"""Ordinary sends, from the bytes of their requests to the kernel, with no message and no draft made of them.

What is not ordinary, and what other broker groups own, is for the method to do (`send_message.py`), after
these: so of the messages of message groups in a batch, all are left from the first on that is.

The messages of a request that has several are taken together or left together, as far as that can be told before one is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Final, NamedTuple

from brokerd.metadata.configs import Metadata, TopicConfig
from brokerd.metadata.names import check_topic_name
from brokerd.proxy.calls import Call
from brokerd.proxy.frame_offers import FrameAnswers, FrameOffer, FramePart, Left, StoredFrame
from brokerd.proxy.mapping import MIXED_TYPES, TYPE_NAMES
from brokerd.proxy.methods.base import CLIENT_ID
from brokerd.proxy.methods.placing import Placing
from brokerd.proxy.methods.several import Rest, Several, messages_of
from brokerd.proxy.native_sends import GROUPED, HALF, PRIORITIZED, QUEUE_DIGITS, TIMED, TYPES, SendReader
from brokerd.proxy.status import OK, encode_length
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.turns import SendTurns
from brokerd.store.put_status import PutStatus
from brokerd.transactions.ids import SECRET_LENGTH, TransactionId
from remoting.errors import InvalidParameter, RequestError
from remoting.facts.placements import MESSAGE_TYPES
from remoting.message_groups import queue_of_group
from remoting.names import is_system_topic

MAX_MESSAGES: Final = 1024  # of a request

_ID: Final = b"\x12"  # field 2 of an entry of the answer
_TRANSACTION: Final = b"\x1a"  # field 3
_OFFSET: Final = b"\x20"  # field 4
_HANDLE: Final = b"\x2a"  # field 5
_ENTRY: Final = b"\x12"  # field 2 of the answer

_END_OF: Final = itemgetter(0)  # of what is found in a request

# What a call is answered whose message, of that id, was not stored, or not as it should; and the id of the transaction, if one
# began
Encode = Callable[[str, SendOutcome, str], bytes]


class _Sent(NamedTuple):
    """What a batch sends, by the numbers of the messages: the requests of each alone, what was found in them, the calls that they
    are of, the secrets of transactions that begin, and for each of several of a call these, and its place among them."""

    requests: Sequence[bytes]
    found: Sequence[tuple[int, ...]]
    calls: Sequence[Call]
    secrets: Mapping[int, str]
    several: dict[int, tuple[Several, int]]


class Quick(NamedTuple):
    """What ordinary sends are carried out with."""

    reader: SendReader
    turns: SendTurns


class QuickSends:
    """Those of one broker group; `encode` makes the answer for what was not stored as it should be."""

    def __init__(
        self,
        quick: Quick,
        metadata: Metadata,
        broker_name: str,
        placing: Placing,
        new_secret: Callable[[], str],
        encode: Encode,
    ) -> None:
        self._reader, self._turns = quick
        self._metadata = metadata
        self._broker_name = broker_name
        self._placing = placing
        self._new_secret = new_secret
        self._encode = encode

    def send(self, calls: Sequence[Call], now_ms: int) -> Sequence[Call]:
        """Carry out what is ordinary; the calls that are left, in order."""
        requests = [call.message for call in calls]
        frames, found = self._reader.read(requests, now_ms)
        counts: Sequence[int] = ()  # of each call's messages; none when each has one
        if not all(map(_END_OF, found)) and (counts := _take_apart(requests, found)):
            frames, found = self._reader.read(requests, now_ms)
        sorting = _Sorting(self._metadata, self._broker_name, self._placing, self._new_secret)
        of_messages = (
            calls if not counts else [call for call, count in zip(calls, counts, strict=True) for _ in range(count)]
        )
        sent = _Sent(requests, found, of_messages, sorting.secrets, {})
        number = begin = 0
        for call, count in zip(calls, counts or repeat(1), strict=False):
            if count > 1:
                begin = self._sort_several(call, number, count, begin, sent, sorting, frames)
                number += count
                continue
            fields = found[number]
            end = fields[0]
            if not end:
                sorting.leave_groups()  # it may be of one
            elif call.metadata.get(CLIENT_ID) and sorting.takes(number, requests[number], fields, frames):
                sorting.add(number, call.peer.packed_host, begin, end, is_grouped=fields[1] == GROUPED)
            begin = end or begin
            number += 1
        if not sorting.taken:
            return calls
        left = Left()
        turn = self._turns.begin(partial(FrameAnswers, partial(self._done, sent)))
        turn.take([FrameOffer(part, left) for part in sorting.parts(frames)])
        turn.append()
        if not left.keys and len(sorting.taken) == number:
            return ()
        taken = sorting.taken.difference(left.keys)
        if counts:
            return _left_of(calls, counts, sent, taken)
        return [call for number, call in enumerate(calls) if number not in taken]

    def _sort_several(
        self,
        call: Call,
        first: int,
        count: int,
        begin: int,
        sent: _Sent,
        sorting: _Sorting,
        frames: bytearray,
    ) -> int:
        """The same of the messages of one call, whose frames begin there; where the next one's do."""
        numbers = range(first, first + count)
        takes = call.metadata.get(CLIENT_ID) and sorting.takes_all(numbers, sent.requests, sent.found, frames)
        if takes:
            several = Several(call, count)
        else:
            sorting.leave_groups()
        for number in numbers:
            end, kind = sent.found[number][:2]
            if takes:
                sorting.add(number, call.peer.packed_host, begin, end, is_grouped=kind == GROUPED)
                sent.several[number] = several, number - first
            begin = end or begin
        return begin

    def _done(self, sent: _Sent, stored: Sequence[StoredFrame], status: PutStatus, error: RequestError | None) -> None:
        requests, found, calls, secrets, several = sent
        for number, position, queue_offset, handle in stored:
            id_at, id_length = found[number][4:6]
            message_id = requests[number][id_at : id_at + id_length]
            transaction = ""
            if secrets and number in secrets and position >= 0:
                transaction = str(TransactionId(position, queue_offset, secrets[number], self._broker_name))
            if status is not PutStatus.PUT_OK:
                outcome = SendOutcome(status, -1, queue_offset, error=error)
                answer = self._encode(message_id.decode(), outcome, transaction)
                if number in several:
                    whole, index = several[number]
                    whole.take((index,), answer)
                else:
                    calls[number].answer(answer)
                continue
            entry = OK + _ID + encode_length(id_length) + message_id
            if transaction:
                encoded = transaction.encode()
                entry += _TRANSACTION + encode_length(len(encoded)) + encoded
            if queue_offset:
                entry += _OFFSET + encode_length(queue_offset)
            if handle:
                encoded = handle.encode()
                entry += _HANDLE + encode_length(len(encoded)) + encoded
            if several and number in several:
                whole, index = several[number]
                whole.add(index, OK, entry)
            else:
                calls[number].answer(OK + _ENTRY + encode_length(len(entry)) + entry)


def _take_apart(requests: list[bytes], found: Sequence[tuple[int, ...]]) -> Sequence[int]:
    """Put in place of each request that has several messages these, as far as they can be told apart; how many messages each has.
    None when nothing changes."""
    apart = [
        messages if not fields[0] and len(messages := messages_of(request, MAX_MESSAGES)) > 1 else (request,)
        for request, fields in zip(requests, found, strict=True)
    ]
    counts = [len(messages) for messages in apart]
    if len(requests) == sum(counts):
        return ()
    requests[:] = [message for messages in apart for message in messages]
    return counts


def _left_of(calls: Sequence[Call], counts: Sequence[int], sent: _Sent, taken: AbstractSet[int]) -> Sequence[Call]:
    """The calls that are left of these, in order: whole, or what of their messages is."""
    rest: list[Call] = []
    first = 0
    for call, count in zip(calls, counts, strict=True):
        numbers = [number for number in range(first, first + count) if number not in taken]
        if len(numbers) == count:
            rest.append(call)
        elif numbers:
            several, _ = sent.several[first]
            message = b"".join([sent.requests[number] for number in numbers])
            rest.append(Rest(several, [number - first for number in numbers], message))
        first += count
    return rest


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

    def takes_all(
        self, numbers: Sequence[int], requests: Sequence[bytes], found: Sequence[tuple[int, ...]], frames: bytearray
    ) -> bool:
        """The same of all messages of a request, which have one topic. None of them begins a transaction, and of those that wait
        for a time the kernel could leave some."""
        topics = set()
        for number in numbers:
            end, kind, topic_at, topic_length = found[number][:4]
            if not end or kind in (HALF, TIMED):
                return False
            topics.add(bytes(frames[topic_at : topic_at + topic_length]))
        return len(topics) == 1 and all(
            self.takes(number, requests[number], found[number], frames) for number in numbers
        )

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
