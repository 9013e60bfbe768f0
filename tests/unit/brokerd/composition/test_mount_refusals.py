"""What a mount refuses: writes always, as what a client must not do; all without its lease, as what may be had again later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.composition.mounting import Mount
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command

READS = (codes.PULL_MESSAGE, codes.POP_MESSAGE, codes.ACK_MESSAGE)
WRITES = (codes.SEND_MESSAGE_V2, codes.UPDATE_AND_CREATE_TOPIC)


class Holder:
    """Of a lease."""

    is_held = True


class Asked:
    """A mount, who asks it, and what came of it."""

    def __init__(self) -> None:
        self.holder = Holder()
        self.handled: list[int] = []
        self.refused: list[RequestError] = []
        mount: Any = Mount
        self._handlers = mount(None, self.holder).protect(dict.fromkeys((*READS, *WRITES), self._handle))

    def ask(self, code: int) -> None:
        self._handlers[code](self, [Command(code=code)])

    def respond_error(self, _request: Command, error: RequestError) -> None:
        self.refused.append(error)

    def _handle(self, _connection: object, requests: Sequence[Command]) -> None:
        self.handled += [each.code for each in requests]


def test_what_is_read_is_answered_and_what_is_written_is_refused_for_good() -> None:
    asked = Asked()
    for code in (*READS, *WRITES):
        asked.ask(code)
    assert asked.handled == [*READS]
    assert [error.code for error in asked.refused] == [codes.NO_PERMISSION] * len(WRITES)


@pytest.mark.parametrize("code", READS)
def test_without_its_lease_nothing_is_answered_and_who_asks_may_come_again(code: int) -> None:
    """A client takes what it is not permitted for a mistake of its own, and asks nobody else."""
    asked = Asked()
    asked.holder.is_held = False
    asked.ask(code)
    assert asked.handled == []
    [error] = asked.refused
    assert error.code == codes.SERVICE_NOT_AVAILABLE
    assert "lost its lease" in str(error)
    asked.holder.is_held = True
    asked.ask(code)
    assert asked.handled == [code]
