"""Two masters that pass sends on to one another and hold them, while placements change: nobody overtakes, nothing is lost or done
twice.

Two real `PlacedSends` with the real method, in turns of the loop, with a wire between them whose messages the test delivers.
The judge is one list of what was stored, in the order of time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerd.metadata.configs import TopicConfig
from brokerd.placement.rules import Owner, Waiting
from brokerd.proxy import held_calls
from brokerd.proxy.calls import GrpcStatus
from brokerd.proxy.forward import ForwardSettings
from brokerd.proxy.forwarded_call import GRPC_STATUS
from brokerd.proxy.methods.placing import Placing
from brokerd.proxy.methods.send_message import send_message
from brokerd.proxy.placed import Placed, PlacedSends
from brokerd.proxy.protobuf import service
from brokerd.proxy.proxy_call import encode_messages
from brokerd.proxy.status import Code
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import ConnectionLost, LogboomError
from remoting.frame import Command
from tests.support.examples import examples
from tests.support.turns import Turns
from tests.unit.brokerd.proxy.calls import FakeCall
from tests.unit.brokerd.proxy.fakes import Alone
from tests.unit.brokerd.proxy.test_methods import sending

TOPIC = TopicConfig("Orders", 4, 4, 6, attributes={"message.type": "FIFO"})
NAMES = ("broker-a", "broker-b")
GROUPS = ("blue", "red")
GROUPS_OF_SENDS = [("blue",), ("blue",), ("red",), ("blue", "red")]
MAX_HELD = 12
HOLD_MS = 500


class Placements:
    """As one master knows them."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.owners: dict[str, str] = dict.fromkeys(GROUPS, NAMES[0])
        self.moving: frozenset[str] = frozenset()
        self.version = 1

    def owner(self, _topic: str, message_group: str) -> Owner | Waiting | None:
        return Waiting.MOVES if message_group in self.moving else (self.owners[message_group], 1)

    def version_of(self, _topic: str) -> int:
        return self.version


class Wire:
    """A connection to a master: requests and answers arrive in the order in which they were sent, when the test says so."""

    is_open = True

    def __init__(self, owner: Master) -> None:
        self.owner = owner
        self.asked: deque[tuple[FakeCall, Callable[[Any], None]]] = deque()
        self.answers: deque[tuple[Callable[[Any], None], Command]] = deque()
        self._out: list[tuple[FakeCall, Callable[[Any], None]]] = []

    def request(self, _code: int, _ext: Any, body: bytes, _timeout_ms: int, answered: Callable[[Any], None]) -> None:
        self.asked.append((FakeCall(body), answered))

    def deliver(self) -> None:
        call, answered = self.asked.popleft()
        self._out.append((call, answered))
        self.owner.handler_of_passed([call])
        self.collect()

    def collect(self) -> None:
        """What was answered meanwhile is on its way."""
        for call, answered in [each for each in self._out if each[0].finished]:
            self._out.remove((call, answered))
            if call.failure is None:
                result = Command(code=codes.SUCCESS, body=encode_messages(call.answers))
            else:
                result = Command(code=codes.SYSTEM_ERROR, ext={GRPC_STATUS: str(int(call.failure[0]))})
            self.answers.append((answered, result))

    def answer(self) -> None:
        answered, result = self.answers.popleft()
        answered(result)

    def lose(self) -> None:
        """It is not open any more, and nothing arrives."""
        self.is_open = False
        waiting = [answered for _, answered in (*self._out, *self.asked)] + [answered for answered, _ in self.answers]
        for call, _ in self._out:
            call.cancel()
        self._out.clear()
        self.asked.clear()
        self.answers.clear()
        lost: LogboomError = ConnectionLost("lost")
        for answered in waiting:
            answered(lost)


class Master:
    """Of one broker group; `stored` is shared by both."""

    def __init__(self, name: str, stored: list[tuple[str, str]]) -> None:
        self.name = name
        self.turns = Turns()
        self.placements = Placements()
        self.stored = stored
        given = ForwardSettings(hold_ms=HOLD_MS, max_held=MAX_HELD)
        none: Any = None
        self.sends = PlacedSends(Placed(self.placements, self), Alone(), none, self.turns, none, given)  # type: ignore[arg-type]
        self.handler = self._method(self.sends)
        self.handler_of_passed = self._method(self.sends.received)

    def _method(self, placing: Placing) -> Callable[[Sequence[Any]], None]:
        metadata: Any = self
        return send_message(self, metadata, self.name, lambda: 0, self.turns.wall_ms, placing=placing)

    def connect(self, other: Master) -> Wire:
        wire = Wire(other)
        self.sends._connections[other.name] = wire  # type: ignore[assignment]
        return wire

    def master_of(self, broker_name: str) -> str:
        return broker_name

    def refresh_soon(self) -> None:
        """Its address is right."""

    def topic(self, _name: str) -> TopicConfig:
        return TOPIC

    def send(self, drafts: Sequence[Draft], done: Callable[[Sequence[SendOutcome]], None]) -> None:
        self.stored += [(draft.body.decode(), self.name) for draft in drafts]
        done([SendOutcome(PutStatus.PUT_OK, 1, 1, 1)] * len(drafts))


class Model(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.small = [patch.object(held_calls, "MAX_LEAVING", 2), patch.object(held_calls, "MAX_LOOKED_AT", 3)]
        for each in self.small:
            each.start()
        self.stored: list[tuple[str, str]] = []
        self.masters = {name: Master(name, self.stored) for name in NAMES}
        self.wires: dict[str, Wire] = {}
        for name in NAMES:
            self.connect(name)
        self.sent: dict[str, tuple[FakeCall, str, tuple[str, ...]]] = {}  # by body: who was asked, message groups
        self.proposed: dict[str, str] | None = None
        self.to_prepare: set[str] = set()
        self.to_activate: set[str] = set()
        self.version = 1

    def teardown(self) -> None:
        if not hasattr(self, "small"):
            return
        try:
            self.settle()
        finally:
            for each in self.small:
                each.stop()

    # ---- what happens

    @rule(name=st.sampled_from(NAMES), sends=st.lists(st.sampled_from(GROUPS_OF_SENDS), min_size=1, max_size=5))
    def send(self, name: str, sends: list[tuple[str, ...]]) -> None:
        """Clients of a master, in one read event."""
        calls = []
        for groups in sends:
            body = f"{len(self.sent)}"
            request = service.SendMessageRequest()
            for group in groups:
                request.messages.append(sending(body.encode(), topic="Orders", message_group=group).messages[0])
            calls.append(FakeCall(request))
            self.sent[body] = calls[-1], name, groups
        self.masters[name].handler(calls)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def deliver(self, name: str, count: int) -> None:
        for _ in range(min(count, len(self.wires[name].asked))):
            self.wires[name].deliver()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def answer(self, name: str, count: int) -> None:
        for _ in range(min(count, len(self.wires[name].answers))):
            self.wires[name].answer()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def turn(self, name: str, count: int) -> None:
        """Some turns of the loop in which nothing comes."""
        for _ in range(count):
            self.masters[name].turns.run_one()
        self.collect()

    @rule(name=st.sampled_from(NAMES), ms=st.sampled_from([1, 50, 50, 150]))
    def time_passes(self, name: str, ms: int) -> None:
        self.masters[name].turns.run(ms)
        self.collect()

    # two changes while one call is on its way are not kept apart: the call does not say by which placement it was passed on
    @precondition(
        lambda self: self.proposed is None and not any(wire.asked or wire.answers for wire in self.wires.values())
    )
    @rule(blue=st.sampled_from(NAMES), red=st.sampled_from(NAMES))
    def propose(self, blue: str, red: str) -> None:
        self.proposed = {"blue": blue, "red": red}
        self.to_prepare = set(NAMES)

    @precondition(lambda self: self.to_prepare)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.to_prepare)))
        self.to_prepare.remove(name)
        placements = self.masters[name].placements
        assert self.proposed is not None
        placements.moving = frozenset(each for each in GROUPS if placements.owners[each] != self.proposed[each])
        self.tell(name)
        if not self.to_prepare:
            self.to_activate = set(NAMES)
            self.version += 1

    @precondition(lambda self: self.to_activate)
    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.to_activate)))
        self.to_activate.remove(name)
        placements = self.masters[name].placements
        assert self.proposed is not None
        placements.owners, placements.moving, placements.version = dict(self.proposed), frozenset(), self.version
        self.tell(name)
        if not self.to_activate:
            self.proposed = None

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["leaves", "leaves", "breaks", *[""] * 5]))
    def mishap(self, name: str, what: str) -> None:
        """A client goes away, or the connection of a master; rarely."""
        alive = [call for call, where, _ in self.sent.values() if call.live and where == name]
        if what == "leaves" and alive:
            alive[len(alive) // 2].cancel()
        elif what == "breaks":
            self.wires[name].lose()
            self.connect(name)

    # ---- what must be so

    @invariant()
    def nobody_overtakes(self) -> None:
        if not hasattr(self, "stored"):
            return
        for name in NAMES:
            for group in GROUPS:
                sent = self.sent
                numbers = [int(body) for body, _ in self.stored if sent[body][1] == name and group in sent[body][2]]
                assert numbers == sorted(numbers), f"{group} of {name} came to {numbers}"

    @invariant()
    def bounds_hold(self) -> None:
        if hasattr(self, "masters"):
            assert all(master.sends.held_count <= MAX_HELD for master in self.masters.values())

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        if hasattr(self, "stored"):
            for body, count in Counter(body for body, _ in self.stored).items():
                assert count == len(self.sent[body][2])

    def settle(self) -> None:
        """Everybody knows the last placement, and all that is on its way arrives: everybody is answered, by what was done."""
        while self.to_prepare:
            self._all(self.to_prepare, self.prepare)
        while self.to_activate:
            self._all(self.to_activate, self.activate)
        for _ in range(20):
            for name in NAMES:
                self.masters[name].turns.run(HOLD_MS / 10)
                self.collect()
                self.deliver(name, 1000)
                self.answer(name, 1000)
            self.nobody_overtakes()
        self.nothing_is_stored_twice()
        stored = {body for body, _ in self.stored}
        for body, (call, _, _) in self.sent.items():
            assert not call.live, f"{body} was never answered"
            if call.answers:
                status = call.response(service.SendMessageResponse).status
                is_known = not status.message.endswith("is unknown")
                assert not is_known or (status.code == Code.OK) == (body in stored), f"{body}: {status}"
            elif call.failure is not None:
                assert call.failure[0] is not GrpcStatus.INTERNAL, call.failure
        for master in self.masters.values():
            assert (master.sends.held_count, master.sends._asked, master.sends._in_flight_bytes) == (0, {}, 0)

    # ---- inside

    def _all(self, names: set[str], step: Callable[[st.DataObject], None]) -> None:
        class First:
            @staticmethod
            def draw(_strategy: object) -> str:
                return min(names)

        step(First())  # type: ignore[arg-type]

    def connect(self, name: str) -> None:
        (other,) = (each for each in NAMES if each != name)
        self.wires[name] = self.masters[name].connect(self.masters[other])

    def tell(self, name: str) -> None:
        for listener in self.masters[name].placements.listeners:
            listener()

    def collect(self) -> None:
        for wire in self.wires.values():
            wire.collect()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(25), stateful_step_count=40, deadline=None)


def test_what_an_earlier_master_of_the_owner_may_give_back_is_waited_for() -> None:
    stored: list[tuple[str, str]] = []
    one, other = Master("broker-a", stored), Master("broker-b", stored)
    for each in (one, other):
        each.placements.owners["blue"] = "broker-b"
    earlier = one.connect(other)
    calls = [FakeCall(sending(body, topic="Orders", message_group="blue")) for body in (b"1", b"2")]
    one.handler(calls[:1])
    later = one.connect(other)
    one.handler(calls[1:])
    one.turns.run(100)
    assert (len(earlier.asked), len(later.asked), one.sends.held_count) == (1, 0, 1)
    _, answered = earlier.asked.popleft()
    answered(Command(code=codes.SERVICE_NOT_AVAILABLE))
    one.turns.run(100)
    while later.asked:
        later.deliver()
    assert stored == [("1", "broker-b"), ("2", "broker-b")]
