"""Requests of several messages, each of which is sent as if it came alone: the messages apart, and one answer of all (pure).

What of them is not ordinary goes on as a call of its own (`Rest`), with these messages alone and the same way back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.proxy.calls import Call, GrpcStatus, Peer
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code, encode_length, status_field

_MESSAGE: Final = 0x0A  # field 1 of a request, with a length
_STATUS: Final = b"\x0a"  # field 1 of an answer
_ENTRY: Final = b"\x12"  # field 2 of an answer
_MAX_LENGTH_BITS: Final = 4 * 7  # before the last one of five bytes


def messages_of(request: bytes, most: int) -> list[bytes]:
    """The messages of a request, each as a request of its own. None of one that has anything else, or more than `most`."""
    found: list[bytes] = []
    at, end = 0, len(request)
    while at < end:
        begin = at
        if request[at] != _MESSAGE or len(found) == most:
            return []
        at += 1
        length = shift = 0
        while True:
            if at == end or shift > _MAX_LENGTH_BITS:
                return []
            byte = request[at]
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        at += length
        if at > end:
            return []
        found.append(request[begin:at])
    return found


class Several:
    """What became of the messages of one call, which is answered when that is known of each."""

    def __init__(self, call: Call, count: int) -> None:
        self.call = call
        self._entries = [b""] * count
        self._statuses: set[bytes] = set()
        self._left = count

    def add(self, index: int, status: bytes, entry: bytes) -> None:
        """Of one message: its status as a field, and its entry in the answer."""
        self._entries[index] = _ENTRY + encode_length(len(entry)) + entry
        self._statuses.add(status)
        self._left -= 1
        if not self._left:
            one = len(self._statuses) == 1
            overall = self._statuses.pop() if one else status_field(Code.MULTIPLE_RESULTS, "see the entries")
            self.call.answer(overall + b"".join(self._entries))

    def take(self, indexes: Sequence[int], answer: bytes) -> None:
        """Of some messages, what a call of these alone was answered."""
        response = service.SendMessageResponse.FromString(answer)
        entries = response.entries
        for place, index in enumerate(indexes):
            entry = entries[place] if place < len(entries) else service.SendMessageResponse(status=response.status)
            status = entry.status.SerializeToString()
            self.add(index, _STATUS + encode_length(len(status)) + status, entry.SerializeToString())


@dataclass(slots=True, eq=False)
class Rest:
    """A call of those messages that are left of another one; see `calls.Call`."""

    several: Several
    indexes: Sequence[int]
    message: bytes
    on_cancel: Callable[[], None] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.several.call.metadata

    @property
    def deadline_ms(self) -> int | None:
        return self.several.call.deadline_ms

    @property
    def peer(self) -> Peer:
        return self.several.call.peer

    @property
    def live(self) -> bool:
        return self.several.call.live

    @property
    def is_slow(self) -> bool:
        return self.several.call.is_slow

    def when_writable(self, start: Callable[[], None]) -> None:
        self.several.call.when_writable(start)

    def answer(self, message: bytes) -> None:
        self.several.take(self.indexes, message)

    def send(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            self.answer(message)

    def finish_with(self, messages: Sequence[bytes]) -> None:
        self.send(messages)

    def finish(self) -> None:
        """It ended with its answer."""

    def fail(self, status: GrpcStatus, text: str) -> None:
        self.several.call.fail(status, text)
