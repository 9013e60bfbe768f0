"""Senders that notice every outage: one per broker of a group, each trying its own broker all the time.

So the moment at which the group accepts sends again is known whatever a client would have to find out first, and a broker that
hangs holds up its own sender alone. A replica refuses at once; its sender asks again a few milliseconds later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.record.properties import encode_properties
from tests.support.workload import History

_PADDING: Final = b"x" * 1000
_PAUSE_S: Final = 0.005  # after a broker took no message
_CONNECT_MS: Final = 200
_ANSWER_MS: Final = 6000
_PATIENCE_S: Final = 30
_UNKNOWN: Final = (codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT)


class Sender(threading.Thread):
    """Sends one message after the other to one broker while that takes any; never sends a body twice."""

    def __init__(self, broker: str, topic: str, number: int, pause_s: float) -> None:
        super().__init__(name=f"sender{number}", daemon=True)
        self.history = History()
        self.successes_s: list[tuple[float, float]] = []  # (sent, acknowledged)
        self.failure: BaseException | None = None
        self._broker = broker
        self._topic = topic
        self._pause_s = pause_s
        self._count = 0
        self._connection: SocketConnection | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                connection = self._connected()
                if connection is None or not self._send_one(connection):
                    self._leave()
                    self.stopping.wait(_PAUSE_S)
                elif self._pause_s:
                    self.stopping.wait(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - told by `Senders`, in the thread that waits
            self.failure = error
        finally:
            self._leave()

    def _connected(self) -> SocketConnection | None:
        if self._connection is None:
            try:
                self._connection = SocketConnection(self._broker, timeout_ms=_CONNECT_MS)
            except ConnectionLost:
                return None
        return self._connection

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send_one(self, connection: SocketConnection) -> bool:
        """Whether the broker acknowledged a message."""
        self._count += 1
        body = f"{self.name}:{self._count}:".encode() + _PADDING
        properties = encode_properties({"UNIQ_KEY": f"{self.name}N{self._count:020d}"}).decode()
        ext = {
            **{"a": "bench", "b": self._topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000"},
            **{"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"},
        }
        sent_s = time.monotonic()
        try:
            answer = connection.call(
                codes.SEND_MESSAGE_V2, ext, body, timeout_ms=_ANSWER_MS, accept=(codes.SUCCESS, *_UNKNOWN)
            )
        except RequestError as error:
            if "is unknown" in error.message:  # the role changed while the message waited
                self.history.unknown.add(body)
            else:
                self.history.refused += 1
            return False
        except (ConnectionLost, RequestTimeout):
            self.history.unknown.add(body)
            return False
        if answer.code != codes.SUCCESS:
            self.history.unknown.add(body)
            return False
        self.history.acknowledged[body] = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        self.successes_s.append((sent_s, time.monotonic()))
        return True


class Senders:
    """All senders of a group."""

    def __init__(self, brokers: Sequence[str], topic: str, pause_s: float = 0.0) -> None:
        """`pause_s` between two messages of a sender: 0 = as fast as they are acknowledged."""
        self._senders = [Sender(broker, topic, number, pause_s) for number, broker in enumerate(brokers)]

    @property
    def histories(self) -> list[History]:
        return [sender.history for sender in self._senders]

    @property
    def acknowledged(self) -> int:
        return sum(len(history.acknowledged) for history in self.histories)

    def start(self) -> None:
        for sender in self._senders:
            sender.start()

    def stop(self) -> list[History]:
        for sender in self._senders:
            sender.stopping.set()
        for sender in self._senders:
            sender.join(_PATIENCE_S)
            assert not sender.is_alive(), f"{sender.name} hangs"
        self._check()
        return self.histories

    def abandon(self) -> None:
        """Stop, whatever state the test left things in."""
        for sender in self._senders:
            sender.stopping.set()

    def first_success_elsewhere(self, broker: int, since_s: float) -> float:
        """When a message that was sent after `since_s` to another broker than this one was acknowledged; waits for it."""
        others = [sender for number, sender in enumerate(self._senders) if number != broker]
        return self._wait_for(lambda: min((found for each in others if (found := _first(each, since_s))), default=None))

    def first_success(self, since_s: float) -> float:
        """The same, of any broker."""
        return self._wait_for(
            lambda: min((found for each in self._senders if (found := _first(each, since_s))), default=None)
        )

    def longest_gap(self, start_s: float, end_s: float) -> float:
        """The longest time without an acknowledgement that reaches into the given one."""
        moments = sorted(at for sender in self._senders for _, at in sender.successes_s if at <= end_s)
        before = [at for at in moments if at < start_s][-1:] or [start_s]
        moments = [*before, *(at for at in moments if at >= start_s), end_s]
        return max(later - earlier for earlier, later in pairwise(moments))

    def _wait_for(self, condition: Callable[[], float | None]) -> float:
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            self._check()
            found = condition()
            if found is not None:
                return found
            time.sleep(0.002)
        raise AssertionError(f"no send succeeded within {_PATIENCE_S} s")

    def _check(self) -> None:
        for sender in self._senders:
            if sender.failure is not None:
                raise sender.failure


def _first(sender: Sender, since_s: float) -> float | None:
    """When the sender's first message that was sent after a moment was acknowledged."""
    found = None
    for sent_s, acknowledged_s in reversed(sender.successes_s):
        if sent_s <= since_s:
            break
        found = acknowledged_s
    return found
