"""What a broker says to clients on their telemetry streams, and the answers to its questions.

A question carries a nonce that nobody can guess, and only the client that was asked can answer it, on its own connection: what
anybody else says, or says too late, is dropped. Questions that wait are bounded, per client and in all.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.members.streams import Answered, Told
from brokerd.pop.requests import PoppedMessage
from brokerd.proxy.calls import Call
from brokerd.proxy.digests import digest_for
from brokerd.proxy.methods.base import LANGUAGE
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.received import encode_answer, stored_of, topic_label
from brokerd.proxy.status import OK
from remoting import codes
from remoting.errors import LogboomError, RequestError, RequestTimeout
from remoting.record.codec import Record

MAX_QUESTIONS: Final = 1024
MAX_QUESTIONS_OF_CLIENT: Final = 16

Owner = tuple[object, str]  # a connection, and the id of a client on it


@dataclass(slots=True, eq=False)
class _Question:
    owner: Owner
    answered: Answered
    timer: Timer


class Questions:
    """Those that wait for an answer, of all clients of one broker."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: dict[str, _Question] = {}
        self._counts: Counter[Owner] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, owner: Owner, ask: Callable[[str], bool], timeout_ms: int, answered: Answered) -> None:
        """Let `ask` send a question under a nonce; it says whether that left."""
        if len(self._waiting) >= MAX_QUESTIONS or self._counts[owner] >= MAX_QUESTIONS_OF_CLIENT:
            text = f"too many questions to clients wait for an answer ({len(self._waiting)}); try again"
            answered(RequestError(codes.SYSTEM_BUSY, text))
            return
        nonce = secrets.token_hex(16)
        timer = self._scheduler.call_later(timeout_ms / 1000, self._expire, nonce, timeout_ms)
        self._waiting[nonce] = _Question(owner, answered, timer)
        self._counts[owner] += 1
        if not ask(nonce):
            self._end(nonce, _gone(owner))

    def answered(self, owner: Owner, nonce: str, told: Told) -> None:
        """A client answers; nothing happens unless it was the one that was asked."""
        question = self._waiting.get(nonce)
        if question is not None and question.owner == owner:
            self._end(nonce, told)

    def connection_closed(self, connection: object) -> None:
        """Nobody answers there any more."""
        for nonce in [nonce for nonce, question in self._waiting.items() if question.owner[0] is connection]:
            self._end(nonce, _gone(self._waiting[nonce].owner))

    def stop(self) -> None:
        """Answer whoever waits."""
        for nonce, question in list(self._waiting.items()):
            self._end(nonce, _gone(question.owner))

    def _expire(self, nonce: str, timeout_ms: int) -> None:
        self._end(
            nonce, RequestTimeout(f"the client {self._waiting[nonce].owner[1]} gave no answer in {timeout_ms} ms")
        )

    def _end(self, nonce: str, result: Told | LogboomError) -> None:
        question = self._waiting.pop(nonce)
        question.timer.cancel()
        self._counts[question.owner] -= 1
        if not self._counts[question.owner]:
            del self._counts[question.owner]
        question.answered(result)


@dataclass(slots=True, eq=False)
class TelemetryStream:
    """`members.streams.CommandStream` on the call that brought a client's last settings.

    `topics` says what the client calls the topics that it publishes, `settings` what it was told (empty: it hears of no changes).
    `is_here`: the client speaks to this broker, not to a replica of ours.
    """

    call: Call
    owner: Owner
    questions: Questions
    topics: Mapping[str, Any] = field(default_factory=dict)
    settings: bytes = b""
    is_here: bool = True

    @property
    def is_open(self) -> bool:
        return self.call.live and not self.call.is_slow

    def recover_orphan(self, half: Record, transaction_id: str) -> bool:
        command = service.TelemetryCommand()
        orphan = command.recover_orphaned_transaction_command
        orphan.message.CopyFrom(self._message_of(half))
        orphan.transaction_id = transaction_id
        return self._push(command)

    def verify_message(self, record: Record, timeout_ms: int, answered: Answered) -> None:
        def ask(nonce: str) -> bool:
            command = service.TelemetryCommand()
            command.verify_message_command.nonce = nonce
            command.verify_message_command.message.CopyFrom(self._message_of(record))
            return self._push(command)

        self.questions.ask(self.owner, ask, timeout_ms, answered)

    def print_threads(self, timeout_ms: int, answered: Answered) -> None:
        def ask(nonce: str) -> bool:
            command = service.TelemetryCommand()
            command.print_thread_stack_trace_command.nonce = nonce
            return self._push(command)

        self.questions.ask(self.owner, ask, timeout_ms, answered)

    def tell_settings(self, settings: Any) -> None:
        """Tell the client its settings when they are others than it knows."""
        encoded = settings.SerializeToString(deterministic=True)
        if encoded != self.settings and self._push(service.TelemetryCommand(settings=settings), OK):
            self.settings = encoded

    def reconnect(self) -> None:
        """Ask the client to leave this connection for a new one."""
        command = service.TelemetryCommand()
        command.reconnect_endpoints_command.nonce = secrets.token_hex(16)
        self._push(command)

    def _push(self, command: Any, status: bytes = b"") -> bool:
        if not self.is_open:
            return False
        self.call.send([status + command.SerializeToString()])
        return True

    def _message_of(self, record: Record) -> Any:
        topic = self.topics.get(record.topic) or definition.Resource(name=record.topic)
        popped = PoppedMessage(
            b"", record.topic, 0, record.queue_id, record.queue_offset, "", record.reconsume_times + 1
        )
        digest = digest_for(self.call.metadata.get(LANGUAGE, ""))
        answer = encode_answer(popped, stored_of(record), topic_label(topic), 0, digest)
        return service.ReceiveMessageResponse.FromString(answer).message


def _gone(owner: Owner) -> RequestError:
    return RequestError(codes.SYSTEM_ERROR, f"the client {owner[1]} is not connected any more")
