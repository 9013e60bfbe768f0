"""A call without a connection, for tests of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brokerd.proxy.calls import GrpcStatus, Peer
from remoting.record.hosts import pack_host

METADATA = {"x-mq-client-id": "client-1", "x-mq-language": "PYTHON", "x-mq-client-version": "5.1.2"}
PEER = Peer("127.0.0.1:5000", pack_host("127.0.0.1", 5000), object())


class FakeCall:
    """Collects what it is answered."""

    def __init__(
        self,
        request: Any,
        *,
        metadata: Mapping[str, str] = METADATA,
        deadline_ms: int | None = None,
        peer: Peer = PEER,
    ) -> None:
        self.message: bytes = request if isinstance(request, bytes) else request.SerializeToString()
        self.metadata = metadata
        self.deadline_ms = deadline_ms
        self.peer = peer
        self.live = True
        self.on_cancel: Callable[[], None] | None = None
        self.answers: list[bytes] = []
        self.finished = False
        self.failure: tuple[GrpcStatus, str] | None = None
        self.writable = True
        self.waiting: list[Callable[[], None]] = []

    @property
    def is_slow(self) -> bool:
        return not self.writable

    def when_writable(self, start: Callable[[], None]) -> None:
        if self.writable:
            start()
        else:
            self.waiting.append(start)

    def answer(self, message: bytes) -> None:
        assert not self.finished
        self.answers.append(message)
        self.finished = True
        self.live = False

    def send(self, messages: Sequence[bytes]) -> None:
        assert not self.finished
        self.answers += messages

    def finish_with(self, messages: Sequence[bytes]) -> None:
        self.send(messages)
        self.finish()

    def finish(self) -> None:
        assert not self.finished
        self.finished = True
        self.live = False

    def fail(self, status: GrpcStatus, text: str) -> None:
        self.failure = status, text
        self.finished = True
        self.live = False

    def cancel(self) -> None:
        """The client goes away."""
        self.live = False
        if self.on_cancel is not None:
            self.on_cancel()

    def response(self, response_class: Any) -> Any:
        """The only answer, parsed."""
        (answer,) = self.answers
        return response_class.FromString(answer)
