"""Sends whose message group another broker group owns, or nobody at the moment: passed on, or held (shell over remoting).

Runs on masters: a replica has its master carry out every send. The owner is asked on a connection between brokers, by `PLACED`.
It gives back at once what a third one owns by its own knowledge, and holds itself what nobody owns: so it does not take a later
send after it gave back an earlier one that was on the same connection. What it gave back is tried again, by then maybe elsewhere.
Recalls of what other broker groups hold go the same way, by `RECALL`, in any order.

Sends of a message group are carried out in the order in which they came. While one is held, or may still be given back by an
earlier owner or an earlier master of the owner, later ones wait. What is held waits until its client's deadline or a few seconds;
that is bounded, and so is what is with owners. A call whose outcome is unknown is not repeated. A broker that does not serve as
the master any more gives what it holds to the next one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, TypeAlias

from brokerd.loop.scheduler import Scheduler
from brokerd.placement.rules import Owner, Waiting
from brokerd.placement.service import PlacementService
from brokerd.proxy.calls import Call, GrpcStatus, run
from brokerd.proxy.forward import ForwardSettings
from brokerd.proxy.forwarded_call import GRPC_STATUS, ForwardedCall
from brokerd.proxy.held_calls import Held, HeldCalls
from brokerd.proxy.methods.placing import CLIENTS_METHODS, Placing, Unplaced
from brokerd.proxy.proxy_call import MAX_REQUEST_BYTES, ProxyCall, decode_messages
from brokerd.proxy.status import Code, Refusal, refusal_of
from brokerd.replication.replica import Replica
from remoting import codes
from remoting.errors import ConnectionLost, LogboomError, ProtocolError, RequestError
from remoting.frame import Command
from remoting.transport.client import RemotingClient
from remoting.transport.connection import RemotingConnection
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
_ANSWER_RESERVE_MS: Final = 200
_CALL_TIMEOUT_MS: Final = 30_000
_OUTCOME_UNKNOWN: Final = (
    "the broker group that owns the message did not answer; whether it carried that out is unknown"
)
_STOPPING: Final = "this broker is stopping"
_DID_NOTHING: Final = frozenset({codes.SERVICE_NOT_AVAILABLE, codes.REQUEST_CODE_NOT_SUPPORTED})


class Masters(Protocol):
    """Where the masters of other broker groups are."""

    def master_of(self, broker_name: str) -> str:
        """Its remoting address; "" while none is known."""

    def has_group(self, broker_name: str) -> bool:
        """Whether the cluster may have a broker group of that name."""

    def refresh_soon(self) -> None:
        """That was wrong, or may be: ask again."""


class Placed(NamedTuple):
    """Which message groups are this broker group's, and where the masters of the others are."""

    placements: PlacementService
    masters: Masters


class _Send(NamedTuple):
    """`is_passed_on`: another broker group did, and is given it back when a third one owns it."""

    unplaced: Unplaced
    is_passed_on: bool


_Held: TypeAlias = Held[_Send]
_Key: TypeAlias = tuple[str, str]  # topic and message group


class _Asked(NamedTuple):
    """So many calls with sends of a message group are on that connection, by that version of the placement, and not answered."""

    connection: RemotingConnection
    version: int
    calls: int


class _Received:
    """Implements `methods.placing.Placing` for calls that other broker groups pass on."""

    def __init__(self, sends: PlacedSends) -> None:
        self._sends = sends
        self.owner = sends.owner

    def elsewhere(self, unplaced: Unplaced) -> None:
        self._sends.place(_Send(unplaced, is_passed_on=True))


class PlacedSends:
    """Implements `methods.placing.Placing` for clients' calls; `received` for those of other broker groups.

    `left_listeners` take the clients' calls of a method that are the next master's to carry out.
    """

    def __init__(
        self,
        placed: Placed,
        mastership: Replica,
        dialler: RemotingClient,
        scheduler: Scheduler,
        tasks: TaskOwner,
        settings: ForwardSettings,
    ) -> None:
        self._placements, self._masters = placed
        self._dialler = dialler
        self._scheduler = scheduler
        self._tasks = tasks
        self._settings = settings
        self._mastership = mastership
        self._call_ids = itertools.count(1)
        self._connections: dict[str, RemotingConnection] = {}  # by address
        self._dialling: set[str] = set()
        self._in_flight_bytes = 0  # what owners were asked and have not answered
        self._asked: dict[_Key, _Asked] = {}  # the same
        self._held: HeldCalls[_Send] = HeldCalls(
            scheduler, self, look_s=_LOOK_S, max_held=settings.max_held, max_bytes=settings.max_held_bytes
        )
        self._reached: dict[str | Waiting, bool] | None = None  # since the last look; without one all are worth a try
        self._here: list[_Held] = []  # to be carried out at the end of the portion
        self._carried_out: dict[int, _Held] = {}  # what is right now, by the call's identity
        self._not_after_all: set[Hashable] = set()  # message groups of what was carried out just now, and is held again
        self._stopped = False
        self.received: Placing = _Received(self)
        self.left_listeners: list[Callable[[str, Sequence[Call]], None]] = []
        self._placements.listeners.append(self._placements_changed)

    @property
    def held_count(self) -> int:
        return len(self._held)

    def owner(self, topic: str, message_group: str) -> Owner | Waiting | None:
        """See `methods.placing.Placing`."""
        key = topic, message_group
        if key in self._not_after_all or (not self._carried_out and self._held.waits(key)):
            return Waiting.BEHIND
        return self._owner_now(topic, message_group)

    def elsewhere(self, unplaced: Unplaced) -> None:
        """See `methods.placing.Placing`."""
        self.place(_Send(unplaced, is_passed_on=False))

    def place(self, send: _Send) -> None:
        """Pass the call on, give it back, or hold it."""
        unplaced = send.unplaced
        held = self._carried_out.get(id(unplaced.call))
        if held is None:
            expires_ms = self._now_ms() + self._settings.hold_ms
            if unplaced.call.deadline_ms is not None:
                expires_ms = min(expires_ms, unplaced.call.deadline_ms - _ANSWER_RESERVE_MS)
            held = self._held.admit(unplaced.call, _keys_of(unplaced), send, expires_ms)
        else:
            held = held._replace(what=send)
        if not self._hand_over(held):
            self._hold(held)
            if self._carried_out:
                self._not_after_all.update(held.keys)

    def give_to_next_master(self) -> None:
        """Give what is held to the next master; nothing happens while this broker serves as that."""
        if self._mastership.serves_clients:
            return
        own: dict[str, list[Call]] = {}
        for held in self._held.take_all():
            if isinstance(held.call, ForwardedCall):
                held.call.give_back()
            elif held.call.live:
                own.setdefault(CLIENTS_METHODS[held.what.unplaced.method], []).append(held.call)
        for method, calls in own.items():
            for listener in self.left_listeners:
                listener(method, calls)

    def stop(self) -> None:
        """Refuse what is held, and give back what other broker groups passed on."""
        self._stopped = True
        for held in self._held.take_all():
            self._hold(held)

    def close(self) -> None:
        """After `stop`, when nobody waits for answers any more."""
        for connection in self._connections.values():
            connection.close()

    # ---- holding

    def _hold(self, held: _Held) -> None:
        if self._stopped and held.what.is_passed_on:
            held.call.fail(GrpcStatus.UNAVAILABLE, _STOPPING)
        elif self._stopped:
            _refuse(held, Code.HA_NOT_AVAILABLE, _STOPPING)
        elif self._is_nowhere(held.what.unplaced):
            _refuse(held, Code.BAD_REQUEST, f"there is no broker group {held.what.unplaced.where} in this cluster")
        elif not self._held.hold(held):
            _refuse(held, Code.TOO_MANY_REQUESTS, _reason(held.what.unplaced.where))

    def _is_nowhere(self, unplaced: Unplaced) -> bool:
        """Whether a client named a broker group that there is not."""
        where = unplaced.where
        return not unplaced.message_groups and isinstance(where, str) and not self._masters.has_group(where)

    def _placements_changed(self) -> None:
        self._reached = None
        self._held.try_all()

    # ---- `held_calls.Carrier`

    def look(self) -> None:
        """What waits for a change of placements is not asked about again before there is one."""
        self.give_to_next_master()
        self._reached = {Waiting.BEHIND: True, Waiting.MOVES: False, Waiting.UNKNOWN: False}

    def attempt(self, held: _Held) -> _Held | None:
        """Have it carried out where its message groups belong now; it stays while that cannot be done."""
        unplaced = held.what.unplaced
        if not self._is_worth_a_try(unplaced.where) or not self._mastership.serves_clients:
            return held
        found = {self._where(unplaced, group) for group in unplaced.message_groups} or {unplaced.where}
        waiting = next((where for where in found if isinstance(where, Waiting)), None)
        if waiting is None and (len(found) > 1 or unplaced.own in found):
            self._here.append(held)  # the method refuses what belongs to different broker groups
            return None
        where = waiting or found.pop()
        held = held._replace(what=held.what._replace(unplaced=unplaced._replace(where=where)))
        return None if self._hand_over(held) else held

    def expire(self, held: _Held) -> None:
        _refuse(held, Code.HA_NOT_AVAILABLE, _reason(held.what.unplaced.where))

    def carry_out(self) -> None:
        """What this broker group takes now, as one append."""
        here, self._here = self._here, []
        self._carried_out = {id(held.call): held for held in here}
        for again, alike in itertools.groupby((held.what.unplaced for held in here), attrgetter("again")):
            run(again, [unplaced.call for unplaced in alike])
        self._carried_out = {}
        self._not_after_all.clear()

    def _is_worth_a_try(self, where: str | Waiting) -> bool:
        if self._reached is None:
            return True
        is_reached = self._reached.get(where)
        if is_reached is None:
            assert isinstance(where, str)
            is_reached = self._reached[where] = self._connection(where) is not None
        return is_reached

    def _where(self, unplaced: Unplaced, message_group: str) -> str | Waiting:
        owner = self._owner_now(unplaced.topic, message_group)
        return unplaced.own if owner is None else owner if isinstance(owner, Waiting) else owner[0]

    def _owner_now(self, topic: str, message_group: str) -> Owner | Waiting | None:
        """Whoever takes the first send of the message group that waits."""
        asked = self._asked.get((topic, message_group)) if self._asked else None
        if asked is not None and asked.version != self._placements.version_of(topic):
            return Waiting.BEHIND  # what is with the owner of then may be given back
        return self._placements.owner(topic, message_group)

    # ---- passing on

    def _connection(self, broker_name: str) -> RemotingConnection | None:
        """The open connection to a group's master; dialled in the background when there is none."""
        address = self._masters.master_of(broker_name)
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        if not address:
            self._masters.refresh_soon()
        elif address not in self._dialling and not self._stopped:
            self._dialling.add(address)
            self._tasks.spawn(self._dial(address), f"connect to {address} of {broker_name}")
        return None

    async def _dial(self, address: str) -> None:
        try:
            connection = await self._dialler.dial(address, {})
            self._connections = {where: each for where, each in self._connections.items() if each.is_open}
            self._connections[address] = connection
        except ConnectionLost as error:
            log.info("%s", error)
            self._masters.refresh_soon()
        finally:
            self._dialling.discard(address)

    def _hand_over(self, held: _Held) -> bool:
        """Pass it on to the broker group that owns it, or back to the one that passed it on here; False while it has to wait."""
        where = held.what.unplaced.where
        if isinstance(where, Waiting):
            return False
        if held.what.is_passed_on:
            text = f"what {where} owns of {held.what.unplaced.topic} is not taken here"
            held.call.fail(GrpcStatus.UNAVAILABLE, text)
            return True
        connection = self._connection(where)
        if connection is None or self._is_on_another(connection, held):
            return False
        self._pass_on(held, where, connection)
        return True

    def _pass_on(self, held: _Held, where: str, connection: RemotingConnection) -> None:
        call = held.call
        if len(call.message) > MAX_REQUEST_BYTES:
            text = f"a request of more than {MAX_REQUEST_BYTES} bytes must be sent to the broker group {where}"
            _refuse(held, Code.BAD_REQUEST, text)
            return
        size = len(call.message)
        if self._in_flight_bytes + size > self._settings.max_in_flight_bytes:
            text = f"the broker group {where} has not answered what it was asked; try again"
            _refuse(held, Code.TOO_MANY_REQUESTS, text)
            return
        self._is_asked(connection, held, size)

        def answered(result: Command | LogboomError) -> None:
            self._has_answered(held, size)
            self._answered(held, result)

        left_ms = _CALL_TIMEOUT_MS if call.deadline_ms is None else max(1, call.deadline_ms - self._now_ms())
        origin = ProxyCall(
            held.what.unplaced.method, next(self._call_ids), left_ms, call.peer.address, 0, call.metadata
        )
        connection.request(
            codes.PROXY_CALL,
            origin.to_ext(),
            call.message,
            min(left_ms, _CALL_TIMEOUT_MS),
            answered,
        )

    def _is_on_another(self, connection: RemotingConnection, held: _Held) -> bool:
        """Whether earlier sends of its message groups are with an earlier master of their owner, which may give them back."""
        if not self._asked:
            return False
        earlier = (self._asked.get(key) for key in _keys_of(held.what.unplaced))
        return any(asked is not None and asked.connection is not connection for asked in earlier)

    def _is_asked(self, connection: RemotingConnection, held: _Held, size: int) -> None:
        self._in_flight_bytes += size
        unplaced = held.what.unplaced
        version = self._placements.version_of(unplaced.topic)
        for key in _keys_of(unplaced):
            asked = self._asked.get(key)
            self._asked[key] = _Asked(connection, version, 1 if asked is None else asked.calls + 1)

    def _has_answered(self, held: _Held, size: int) -> None:
        self._in_flight_bytes -= size
        for key in _keys_of(held.what.unplaced):
            asked = self._asked[key]
            if asked.calls == 1:
                del self._asked[key]
            else:
                self._asked[key] = asked._replace(calls=asked.calls - 1)

    def _answered(self, held: _Held, result: Command | LogboomError) -> None:
        call = held.call
        if not call.live:
            return
        if isinstance(result, LogboomError):
            self._masters.refresh_soon()
            _refuse(held, Code.HA_NOT_AVAILABLE, _OUTCOME_UNKNOWN)
        elif result.code == codes.SUCCESS:
            self._deliver(call, result)
        elif result.code in _DID_NOTHING or result.ext.get(GRPC_STATUS) == str(int(GrpcStatus.UNAVAILABLE)):
            self._masters.refresh_soon()
            self._hold(held)
        elif GRPC_STATUS in result.ext:
            call.fail(GrpcStatus.INTERNAL, result.remark or "the owner of the message failed")
        else:
            refusal = refusal_of(RequestError(result.code, result.remark or "the owner of the message failed"))
            held.what.unplaced.refuse(call, None, refusal)

    def _deliver(self, call: Call, result: Command) -> None:
        try:
            (message,) = decode_messages(bytes(result.body))
        except (ProtocolError, ValueError) as error:
            call.fail(GrpcStatus.INTERNAL, f"the owner of the message gave no answer: {error}")
            return
        call.answer(message)

    def _now_ms(self) -> int:
        return int(self._scheduler.time() * 1000)


def _refuse(held: _Held, code: Code, text: str) -> None:
    held.what.unplaced.refuse(held.call, None, Refusal(code, text))


def _keys_of(unplaced: Unplaced) -> list[_Key]:
    return [(unplaced.topic, group) for group in unplaced.message_groups]


def _reason(where: str | Waiting) -> str:
    if isinstance(where, Waiting):
        return f"nobody takes messages of this message group at the moment: {where.value}; try again"
    return f"broker group {where} owns this message and has no master at the moment; try again"
