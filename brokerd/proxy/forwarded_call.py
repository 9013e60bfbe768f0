"""A call that a replica forwards, as the master's methods see it (shell over remoting)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerd.proxy.calls import GrpcStatus, Peer
from brokerd.proxy.proxy_call import ProxyCall, encode_messages, take_part
from remoting import codes
from remoting.errors import NotMaster
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

GRPC_STATUS: Final = "grpcStatus"
MORE_FIELD: Final = "more"


@dataclass(slots=True, eq=False)
class ForwardedCall:
    """A call that a replica forwards; see `calls.Call`. `request` is the one to answer next, None between two parts."""

    finished: Callable[[ForwardedCall], None]
    connection: RemotingConnection
    request: Command | None
    origin: ProxyCall
    peer: Peer
    deadline_ms: int | None
    message: bytes
    on_cancel: Callable[[], None] | None = None
    live: bool = True
    messages: list[bytes] = field(default_factory=list)

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.origin.metadata or {}

    @property
    def is_slow(self) -> bool:
        return self.connection.is_slow

    def when_writable(self, start: Callable[[], None]) -> None:
        # the replica does the waiting, before it forwards
        start()

    def answer(self, message: bytes) -> None:
        self.messages.append(message)
        self.finish()

    def send(self, messages: Sequence[bytes]) -> None:
        self.messages += messages

    def finish_with(self, messages: Sequence[bytes]) -> None:
        self.send(messages)
        self.finish()

    def finish(self) -> None:
        if not self.live:
            return
        count = take_part(self.messages)
        part = encode_messages(self.messages[:count])
        del self.messages[:count]
        request, self.request = self.request, None
        assert request is not None
        if self.messages:
            # the call stays known until the replica has fetched the rest
            self.connection.respond(request, codes.SUCCESS, {MORE_FIELD: "1"}, part)
        else:
            self.live = False
            self.finished(self)
            self.connection.respond(request, codes.SUCCESS, None, part)

    def fetch(self, request: Command) -> None:
        """The replica asks for the next part."""
        self.request = request
        self.finish()

    def fail(self, status: GrpcStatus, text: str) -> None:
        if self.live and self.request is not None:
            self.live = False
            self.finished(self)
            self.connection.respond(self.request, codes.SYSTEM_ERROR, {GRPC_STATUS: str(int(status))}, remark=text)

    def give_back(self) -> None:
        """This broker does not serve as the master any more, and did nothing: whoever asked it asks the next one."""
        if self.live and self.request is not None:
            self.live = False
            self.finished(self)
            self.connection.respond_error(self.request, NotMaster())

    def cancel(self) -> None:
        """The client went away."""
        if self.live:
            self.live = False
            self.finished(self)
            on_cancel, self.on_cancel = self.on_cancel, None
            if on_cancel is not None:
                on_cancel()
            if self.request is not None:
                self.connection.respond(self.request, codes.SYSTEM_ERROR, remark="cancelled")
