"""What the ordered consumer of the stories takes for a broken order, whichever way its acks end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.pop.requests import AckStatus, PoppedMessage
from tests.sim.history import History
from tests.sim.poppers import OrderedPopper
from tests.sim.world import Violation, World

_Answered = Callable[[Sequence[AckStatus] | None], None]


class _Popper(OrderedPopper):
    """Its calls are answered by the test."""

    def __init__(self) -> None:
        cluster: Any = SimpleNamespace(history=History(), offered=[SimpleNamespace(name="b")])
        super().__init__(World(0), cluster, "ordered", 0)
        self.asked: list[_Answered] = []

    def call(self, broker: Any, run: Any, answered: Any, timeout_ms: float) -> None:
        self.asked.append(answered)

    def ack(self, delivery: int) -> _Answered:
        """Acknowledge the first message by the handle of one of its deliveries; what tells how that ended."""
        self._ack([_message(0, delivery)])
        return self.asked[-1]

    def take_second(self) -> None:
        """The second message comes, alone."""
        self._take([_message(1, 1)])


def _message(offset: int, delivery: int) -> PoppedMessage:
    return PoppedMessage(b"", "T", 0, 0, offset, f"{offset} of delivery {delivery}", delivery)


def test_what_came_first_must_be_finished() -> None:
    with pytest.raises(Violation, match=r"before \[0\] is finished"):
        _Popper().take_second()


@pytest.mark.parametrize("status", [[AckStatus.OK], [AckStatus.FAILED], None], ids=["ok", "failed", "no answer"])
def test_an_ack_that_was_not_refused_may_have_finished_it(status: list[AckStatus] | None) -> None:
    popper = _Popper()
    popper.ack(1)(status)
    popper.take_second()


def test_the_handle_of_an_earlier_delivery_may_be_refused_after_that_of_the_next_one_finished_it() -> None:
    popper = _Popper()
    earlier, later = popper.ack(1), popper.ack(2)
    later([AckStatus.OK])
    earlier([AckStatus.INVALID_HANDLE])
    popper.take_second()


def test_a_refused_handle_finishes_nothing_even_if_the_next_message_came_meanwhile() -> None:
    popper = _Popper()
    answered = popper.ack(1)
    popper.take_second()  # the ack may be under way
    answered([AckStatus.INVALID_HANDLE])
    with pytest.raises(Violation, match=r"before \[0\] is finished"):
        popper.take_second()
