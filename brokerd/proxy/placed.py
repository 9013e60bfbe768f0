"""Sends whose message group another broker group owns, or nobody at the moment: passed on, or held (shell over remoting).

Runs on masters: a replica has its master carry out every send. The owner is asked on a connection between brokers, by `PLACED`,
which it takes only while it owns the message group itself; what it did not take is tried again, by then maybe elsewhere. Recalls
of what other broker groups hold go the same way, by `RECALL`.
What is held waits until its client's deadline or a few seconds; that is bounded, and so is what is with owners. A call whose
outcome is unknown is not repeated.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.placement.rules import Owner, Waiting
from brokerd.placement.service import PlacementService
from brokerd.proxy.calls import Call, GrpcStatus, run
from brokerd.proxy.forward import ForwardSettings
from brokerd.proxy.forwarded import GRPC_STATUS
from brokerd.proxy.methods.placing import Unplaced
from brokerd.proxy.proxy_call import MAX_REQUEST_BYTES, ProxyCall, decode_messages
from brokerd.proxy.status import Code, Refusal, refusal_of
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
_DID_NOTHING: Final = frozenset({codes.SERVICE_NOT_AVAILABLE, codes.REQUEST_CODE_NOT_SUPPORTED})


class Masters(Protocol):
    """Where the masters of other broker groups are."""

    def master_of(self, broker_name: str) -> str:
        """Its remoting address; "" while none is known."""

    def has_group(self, broker_name: str) -> bool:
        """Whether the cluster may have a broker group of that name."""

    def refresh_soon(self) -> None:
        """That was wrong, or may be: ask again."""


class _Held(NamedTuple):
    """A call that waits, or is with its owner, and until when it is worth another try."""

    unplaced: Unplaced
    expires_ms: int


class PlacedSends:
    """Implements `methods.placing.Placing` for clients' calls."""

    def __init__(
        self,
        placements: PlacementService,
        masters: Masters,
        dialler: RemotingClient,
        scheduler: Scheduler,
        tasks: TaskOwner,
        settings: ForwardSettings,
    ) -> None:
        self.owner: Callable[[str, str], Owner | Waiting | None] = placements.owner
        self._masters = masters
        self._dialler = dialler
        self._scheduler = scheduler
        self._tasks = tasks
        self._settings = settings
        self._call_ids = itertools.count(1)
        self._connections: dict[str, RemotingConnection] = {}  # by address
        self._dialling: set[str] = set()
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._in_flight_bytes = 0  # what owners were asked and have not answered
        self._trying: dict[int, int] = {}  # calls that are carried out now, by identity: until when each may be held
        self._timer: Timer | None = None
        self._stopped = False
        placements.listeners.append(self._placements_changed)

    @property
    def held_count(self) -> int:
        return len(self._held)

    def elsewhere(self, unplaced: Unplaced) -> None:
        """Pass the call on, or hold it."""
        expires_ms = self._trying.get(id(unplaced.call), self._now_ms() + self._settings.hold_ms)
        if unplaced.call.deadline_ms is not None:
            expires_ms = min(expires_ms, unplaced.call.deadline_ms - _ANSWER_RESERVE_MS)
        sent = _Held(unplaced, expires_ms)
        if not self._pass_on(sent):
            self._hold(sent)

    def stop(self) -> None:
        """Refuse what is held."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        held, self._held = self._held, deque()
        for each in held:
            _refuse(each.unplaced, Code.HA_NOT_AVAILABLE, "this broker is stopping")

    def close(self) -> None:
        """After `stop`, when nobody waits for answers any more."""
        for connection in self._connections.values():
            connection.close()

    # ---- holding

    def _hold(self, held: _Held) -> None:
        settings, call = self._settings, held.unplaced.call
        if self._stopped:
            _refuse(held.unplaced, Code.HA_NOT_AVAILABLE, "this broker is stopping")
        elif not held.unplaced.message_group and not self._masters.has_group(name := str(held.unplaced.where)):
            _refuse(held.unplaced, Code.BAD_REQUEST, f"there is no broker group {name[:64]} in this cluster")
        elif len(self._held) >= settings.max_held or self._held_bytes + len(call.message) > settings.max_held_bytes:
            _refuse(held.unplaced, Code.TOO_MANY_REQUESTS, _reason(held.unplaced.where))
        else:
            self._held.append(held)
            self._held_bytes += len(call.message)
            if self._timer is None:
                self._timer = self._scheduler.call_later(_LOOK_S, self._look)

    def _placements_changed(self) -> None:
        """In this turn of the loop, so that what was held stays in front of what comes."""
        if self._held:
            self._try_held(lambda _: True)

    def _look(self) -> None:
        self._timer = None
        places = {(each.unplaced.where, each.unplaced.own) for each in self._held}
        reached = {where for where, own in places if where == own or self._is_reached(where)}
        self._try_held(lambda where: where in reached)
        if self._held and self._timer is None and not self._stopped:
            self._timer = self._scheduler.call_later(_LOOK_S, self._look)

    def _is_reached(self, where: str | Waiting) -> bool:
        return isinstance(where, str) and self._connection(where) is not None

    def _try_held(self, may_go: Callable[[str | Waiting], bool]) -> None:
        held, self._held, self._held_bytes = self._held, deque(), 0
        now_ms = self._now_ms()
        here: list[_Held] = []
        for each in held:
            unplaced = each.unplaced
            if not unplaced.call.live:
                continue
            if now_ms >= each.expires_ms:
                _refuse(unplaced, Code.HA_NOT_AVAILABLE, _reason(unplaced.where))
            elif not may_go(unplaced.where):
                self._hold(each)
            elif not self._go_on(each, here):
                self._hold(each._replace(unplaced=unplaced._replace(where=self._where(unplaced))))
        self._carry_out(here)

    def _carry_out(self, here: Sequence[_Held]) -> None:
        """What this broker group takes now, as one append: very many may have waited."""
        self._trying = {id(each.unplaced.call): each.expires_ms for each in here}
        for again, alike in itertools.groupby((each.unplaced for each in here), attrgetter("again")):
            run(again, [unplaced.call for unplaced in alike])
        self._trying.clear()

    def _owner(self, unplaced: Unplaced) -> Owner | Waiting | None:
        if not unplaced.message_group and isinstance(unplaced.where, str):
            return unplaced.where, -1
        return self.owner(unplaced.topic, unplaced.message_group)

    def _where(self, unplaced: Unplaced) -> str | Waiting:
        owner = self._owner(unplaced)
        return unplaced.where if owner is None else owner if isinstance(owner, Waiting) else owner[0]

    def _go_on(self, held: _Held, here: list[_Held]) -> bool:
        """Have it carried out where its message group belongs now, or note that this is `here`; False when that cannot be done
        yet."""
        unplaced = held.unplaced
        owner = self._owner(unplaced)
        if isinstance(owner, Waiting):
            return False
        if owner is not None and owner[0] != unplaced.own:
            return self._pass_on(held._replace(unplaced=unplaced._replace(where=owner[0])))
        here.append(held)
        return True

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

    def _pass_on(self, sent: _Held) -> bool:
        call, where = sent.unplaced.call, sent.unplaced.where
        connection = self._connection(where) if isinstance(where, str) else None
        if connection is None:
            return False
        if len(call.message) > MAX_REQUEST_BYTES:
            text = f"a request of more than {MAX_REQUEST_BYTES} bytes must be sent to the broker group {where}"
            _refuse(sent.unplaced, Code.BAD_REQUEST, text)
            return True
        size = len(call.message)
        if self._in_flight_bytes + size > self._settings.max_in_flight_bytes:
            text = f"the broker group {where} has not answered what it was asked; try again"
            _refuse(sent.unplaced, Code.TOO_MANY_REQUESTS, text)
            return True
        self._in_flight_bytes += size

        def answered(result: Command | LogboomError) -> None:
            self._in_flight_bytes -= size
            self._answered(sent, result)

        left_ms = _CALL_TIMEOUT_MS if call.deadline_ms is None else max(1, call.deadline_ms - self._now_ms())
        origin = ProxyCall(sent.unplaced.method, next(self._call_ids), left_ms, call.peer.address, 0, call.metadata)
        connection.request(
            codes.PROXY_CALL,
            origin.to_ext(),
            call.message,
            min(left_ms, _CALL_TIMEOUT_MS),
            answered,
        )
        return True

    def _answered(self, sent: _Held, result: Command | LogboomError) -> None:
        call = sent.unplaced.call
        if not call.live:
            return
        if isinstance(result, LogboomError):
            self._masters.refresh_soon()
            _refuse(sent.unplaced, Code.HA_NOT_AVAILABLE, _OUTCOME_UNKNOWN)
        elif result.code == codes.SUCCESS:
            self._deliver(call, result)
        elif result.code in _DID_NOTHING or result.ext.get(GRPC_STATUS) == str(int(GrpcStatus.UNAVAILABLE)):
            self._masters.refresh_soon()
            self._hold(sent)
        elif GRPC_STATUS in result.ext:
            call.fail(GrpcStatus.INTERNAL, result.remark or "the owner of the message failed")
        else:
            refusal = refusal_of(RequestError(result.code, result.remark or "the owner of the message failed"))
            sent.unplaced.refuse(call, None, refusal)

    def _deliver(self, call: Call, result: Command) -> None:
        try:
            (message,) = decode_messages(bytes(result.body))
        except (ProtocolError, ValueError) as error:
            call.fail(GrpcStatus.INTERNAL, f"the owner of the message gave no answer: {error}")
            return
        call.answer(message)

    def _now_ms(self) -> int:
        return int(self._scheduler.time() * 1000)


def _refuse(unplaced: Unplaced, code: Code, text: str) -> None:
    unplaced.refuse(unplaced.call, None, Refusal(code, text))


def _reason(where: str | Waiting) -> str:
    if isinstance(where, Waiting):
        return f"nobody takes messages of this message group at the moment: {where.value}; try again"
    return f"broker group {where} owns this message and has no master at the moment; try again"
