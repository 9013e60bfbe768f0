"""How a change is answered that is recorded first: when it is acknowledged, or with the reason why it is not."""

from __future__ import annotations

from collections.abc import Callable

from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

Done = Callable[[RequestError | None], None]


def when_done(connection: RemotingConnection, request: Command, *, unchanged: bool = False, body: bytes = b"") -> Done:
    """The `done` of a change; `unchanged` = all was so before, which the answer's remark says."""

    def done(error: RequestError | None) -> None:
        if error is None:
            connection.respond(request, body=body, remark="unchanged" if unchanged else None)
        else:
            connection.respond_error(request, error)

    return done
