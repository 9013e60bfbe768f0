"""A client's connection to the remoting port of a broker, without a socket: the daemon's own connection on one end, and bytes
that the network tears, holds and delivers in order between.

What came and nobody read lies in the socket: the loop reads it when it may, or the thread beside it (`beside.py`), which writes
there, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from remoting import frame
from remoting.frame import Command
from remoting.transport.connection import Intake, RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.taking import BufferTaker
from tests.sim.loop import SimLoop
from tests.sim.world import Node, Stream

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker

_SOON_MS: Final = 0.02  # most that a loop takes to go on
_PEER: Final = ("10.1.0.7", 40000)


class StepLoop(SimLoop):
    """A loop whose callbacks are a step of the world each: others may do something between two of them."""

    def __init__(self, node: Node, rng: Random) -> None:
        super().__init__(node, rng)
        self._readers: dict[int, Callable[[], object]] = {}
        self._last_ms = 0.0  # when the callback comes that was asked for last

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        world = self._node.world
        # in their order, whenever each of them comes
        self._last_ms = max(self._last_ms, world.now_ms + self._rng.uniform(0, _SOON_MS))
        self._node.after(
            self._last_ms - world.now_ms, self._node.guarded(partial(self._run_unless, handle, callback, args))
        )
        return handle

    @staticmethod
    def _run_unless(handle: asyncio.Handle, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not handle.cancelled():
            callback(*args)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._node.call_later(max(0.0, when - self.time()), partial(self._run_unless, handle, callback, args))
        return handle

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._readers[fd] = partial(callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, descriptor: int) -> None:
        """Who reads that does, soon."""
        self.call_soon(self._readers[descriptor])


class _Socket:
    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


class Wire(asyncio.Transport):
    """The broker's end: the transport of its connection, and the socket under it. `answered` is shown what leaves, frame by
    frame, when it does."""

    def __init__(self, broker: SimBroker, client: Node, number: int, heard: Callable[[bytes], None]) -> None:
        """`heard` gets what arrives at the client."""
        super().__init__()
        self.unread = bytearray()
        self.is_open = True
        self.reads_beside: Callable[[], None] | None = None  # told that there is something to read, in the loop's place
        self.answered: Callable[[Command], None] = lambda _answer: None
        self.connection: RemotingConnection
        self.number = number
        self._broker = broker
        self._life = broker.life
        self._socket = _Socket(number)
        self._is_reading = True
        self._is_due = False
        self._left = b""  # of what left, a frame that is not whole yet
        self._to_client = Stream(broker.network, broker, client, heard)
        self._to_broker = Stream(broker.network, client, broker, self._arrive)

    def connect(
        self,
        handlers: Mapping[int, Any],
        limits: ConnectionLimits,
        taker: BufferTaker[RemotingConnection],
        intake: Intake,
    ) -> None:
        """On the broker's loop."""
        self.connection = RemotingConnection(handlers, limits, taker=taker, intake=intake)
        self.connection.connection_made(self)

    # ---- the client

    def send(self, data: bytes) -> None:
        self._to_broker.send(data)

    def hang_up(self) -> None:
        """The client closes its end; the broker hears of it."""
        if self.is_open and self._broker.life == self._life and self._broker.is_up:
            self._broker.after(0, self._broker.guarded(self._lost))
        self._to_client.is_open = self._to_broker.is_open = False

    def _lost(self) -> None:
        if self.is_open:
            self.is_open = False
            self.connection.connection_lost(None)

    # ---- the socket

    def _arrive(self, data: bytes) -> None:
        self._broker.guarded(partial(self._came, data))()

    def _came(self, data: bytes) -> None:
        if not self.is_open:
            return
        self.unread += data
        if self.reads_beside is not None:
            self.reads_beside()
        else:
            self._read_soon()

    def _read_soon(self) -> None:
        if self._is_reading and self.unread and not self._is_due:
            self._is_due = True
            self._broker.call_soon(self._read)

    def _read(self) -> None:
        self._is_due = False
        if self._is_reading and self.unread and self.is_open:
            self.connection.data_received(self.take(len(self.unread)))

    def take(self, most: int) -> bytes:
        """Read so much at most, by whoever reads."""
        data = bytes(self.unread[:most])
        del self.unread[:most]
        return data

    def put(self, data: bytes) -> None:
        """Write, by whoever writes."""
        if not data:
            return
        answers: list[Command] = []
        content = self._left + data
        self._left = content[frame.decode_frames(content, answers) :]
        for answer in answers:
            self.answered(answer)
        self._to_client.send(data)

    # ---- `asyncio.Transport`

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": _PEER, "sockname": ("10.0.0.1", 10911), "socket": self._socket}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        if self.is_open:
            self.put(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._read_soon()

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._broker.call_soon(self._lost)
