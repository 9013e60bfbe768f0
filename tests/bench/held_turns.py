"""How long the event loop stands still when calls that were held are carried out.

    python -m tests.bench.held_turns [--calls N ...]

Sends whose message groups move are held by a master until it owns them, or until another broker group does, and calls that wait
for a master by a replica until it is the master itself. Methods, sender and log are those of a broker; clients and the other
broker group are stand-ins, so what HTTP/2 costs is not in it. CPU time is what a turn takes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from brokerd.delay.levels import DEFAULT_DELAYS
from brokerd.loop import tuning
from brokerd.metadata.configs import TopicConfig
from brokerd.placement.rules import Owner, Waiting
from brokerd.proxy.calls import GrpcStatus, Handler, Peer
from brokerd.proxy.forward import Forwarder, ForwardSettings
from brokerd.proxy.methods.table import build_methods
from brokerd.proxy.placed import Placed, PlacedSends
from brokerd.proxy.protobuf import service
from brokerd.proxy.proxy_call import encode_messages
from brokerd.sending.counters import Counters
from brokerd.sending.sender import MessageSender, SendRules
from brokerd.store.put_status import PutStatus
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.disk import LocalDisk
from remoting.frame import Command
from remoting.record.hosts import pack_host
from remoting.transport.client import RemotingClient
from remoting.transport.tasks import TaskOwner
from tests.bench.harness import Row
from tests.bench.ledger_turns import TimedTurns
from tests.support.timers import StillTimers, timed_messages
from tests.unit.brokerd.proxy.fakes import Alone, FakeBroker, MastershipFake
from tests.unit.brokerd.sending.test_send import Halves

CALLS: Final = (1000, 10_000)
GOAL_MS: Final = 20.0

_TOPIC: Final = "Orders"
_CUSTOMERS: Final = 1000
_BODY: Final = b"x" * 1024
_OWN: Final = "broker-a"
_OTHER: Final = "broker-b"
_SETTLED_MS: Final = 1000.0  # of the hand-moved clock, for what goes on in further turns


class Client:
    """A call that is only told what became of it."""

    metadata: Final = {"x-mq-client-id": "client", "x-mq-language": "JAVA"}
    peer: Final = Peer("127.0.0.1:5000", pack_host("127.0.0.1", 5000), object())
    deadline_ms: Final = None
    is_slow: Final = False

    def __init__(self, message: bytes, answered: list[bytes]) -> None:
        self.message = message
        self.on_cancel: Callable[[], None] | None = None
        self.live = True
        self._answered = answered

    def when_writable(self, start: Callable[[], None]) -> None:
        start()

    def answer(self, message: bytes) -> None:
        assert self.live
        self.live = False
        self._answered.append(message)

    def send(self, messages: Sequence[bytes]) -> None:
        raise AssertionError("a send has one answer")

    finish_with = send

    def finish(self) -> None:
        raise AssertionError("a send has one answer")

    def fail(self, status: GrpcStatus, text: str) -> None:
        raise AssertionError(f"{status.name}: {text}")


class Placements:
    """Where message groups belong, as the benchmark says."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.where: Owner | Waiting = Waiting.MOVES

    def owner(self, _topic: str, _message_group: str) -> Owner | Waiting | None:
        return self.where

    def version_of(self, _topic: str) -> int:
        return 1

    def change(self) -> None:
        for listener in self.listeners:
            listener()


class Owners:
    """The other broker groups: a connection to a master that has stored what it is asked to, before the loop's turn is over."""

    is_open: Final = True

    def master_of(self, _broker_name: str) -> str:
        return "127.0.0.1:1"

    def refresh_soon(self) -> None:
        raise AssertionError("its address is known")

    def request(self, code: int, ext: Any, body: bytes, _timeout_ms: int, answered: Callable[[Command], None]) -> None:
        answered(Command(code=codes.SUCCESS, body=encode_messages([b""])))


class Acknowledger:
    """Every append is on disk a millisecond later."""

    def __init__(self, turns: TimedTurns) -> None:
        self._turns = turns

    def refusal(self) -> None:
        return None

    def appended(self, _end_offset: int) -> None:
        pass

    def wait(self, _position: int, callback: Callable[[PutStatus], None]) -> None:
        self._turns.call_later(0.001, callback, PutStatus.PUT_OK)


class Mastership(MastershipFake):
    """Of a replica, until it is told to be the master."""

    is_master = False
    is_handing_over = False
    master_address: Final = ""


class Broker:
    """What is measured, of one broker."""

    def __init__(self, directory: Path) -> None:
        self.turns = TimedTurns()
        self.store = MessageStore(
            LocalDisk(directory), StoreSettings(), self.turns.wall_ms, pack_host("127.0.0.1", 10911)
        )
        self.store.load()
        self.store.set_appendable(True)
        config = TopicConfig(_TOPIC, 8, 8, 6, attributes={"message.type": "FIFO"})
        rules = SendRules({_TOPIC: config}.get, "c", DEFAULT_DELAYS)
        timed = timed_messages(StillTimers(self.turns.wall_ms))
        sender: Any = MessageSender(self.store, Acknowledger(self.turns), rules, Counters(), Halves(), timed)  # type: ignore[arg-type]
        fakes = FakeBroker()
        fakes.topic_table[_TOPIC] = config
        services = replace(fakes.services(), sender=sender, broker_name=_OWN)
        settings = ForwardSettings(max_held=1_000_000, max_held_bytes=1 << 40, max_in_flight_bytes=1 << 40)
        self.placements, owners, tasks, dialler = Placements(), Owners(), TaskOwner("held"), RemotingClient()
        given: Any = (Placed(self.placements, owners), Alone(), dialler, self.turns, tasks, settings)
        self.placed = PlacedSends(*given)
        self.placed._connections[owners.master_of(_OTHER)] = owners  # type: ignore[assignment]
        methods = build_methods(
            services,
            scheduler=self.turns,
            monotonic_ms=self.turns.monotonic_ms,
            wall_ms=self.turns.wall_ms,
            placing=self.placed,
        )
        self.mastership: Any = Mastership()
        self.forwarder = Forwarder(
            methods, dialler, self.mastership, scheduler=self.turns, tasks=tasks, settings=settings
        )
        self.send: Handler = methods.handlers["SendMessage"]
        self.answers: list[bytes] = []

    def calls(self, count: int) -> list[Client]:
        return [Client(_request(number % _CUSTOMERS), self.answers) for number in range(count)]


@cache
def _request(customer: int) -> bytes:
    request = service.SendMessageRequest()
    message = request.messages.add(body=_BODY)
    message.topic.name = _TOPIC
    message.system_properties.message_id = f"{customer:032X}"
    message.system_properties.message_group = f"customer-{customer}"
    return request.SerializeToString()


def run(counts: Sequence[int] = CALLS) -> list[Row]:
    tuning.settle()
    return [row for count in counts for row in _rows(count)]


def _rows(count: int) -> list[Row]:
    rows = []
    for what, carry_out in (
        ("sends come into force here", _owned_here),
        ("sends come into force elsewhere", _owned_elsewhere),
        ("sends of a replica that becomes the master", _becomes_master),
    ):
        with tempfile.TemporaryDirectory() as directory:
            broker = Broker(Path(directory))
            carry_out(broker, count)
            longest_ms = broker.turns.longest_ms()
            assert len(broker.answers) == count, f"{len(broker.answers)} of {count} were answered"
            broker.store.close()
        row = Row(
            f"{count:,} held {what}: longest turn",
            f"{longest_ms:.1f} ms",
            f"<= {GOAL_MS:.0f} ms",
            longest_ms <= GOAL_MS,
        )
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
        rows.append(row)
    return rows


def _owned_here(broker: Broker, count: int) -> None:
    broker.send(broker.calls(count))
    assert broker.placed.held_count == count
    broker.placements.where = _OWN, 1
    broker.turns.timed(broker.placements.change)
    broker.turns.run(_SETTLED_MS)


def _owned_elsewhere(broker: Broker, count: int) -> None:
    broker.send(broker.calls(count))
    broker.placements.where = _OTHER, 1
    broker.turns.timed(broker.placements.change)
    broker.turns.run(_SETTLED_MS)


def _becomes_master(broker: Broker, count: int) -> None:
    broker.placements.where = _OWN, 1
    broker.forwarder.execute("SendMessage", broker.calls(count))
    broker.mastership.is_master = True
    broker.turns.run(_SETTLED_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="*", default=list(CALLS), help="held (%(default)s)")
    run(parser.parse_args().calls)


if __name__ == "__main__":
    main()
