"""A replica's side of forwarded calls: what only the master can do is asked of the master (shell over remoting).

Which addresses a client tries, and in which order, is the client's business; so every broker of a group answers every call. While
no master is known, right after one was lost, calls are held for a moment instead of refused: most elections end sooner than a
client's deadline. So are calls to a master that hands over as planned. A call whose outcome is unknown is asked again only if
asking twice does no harm.

Telemetry streams end here; who their clients are, `clients_here.py` tells the master.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.proxy.bundled_sends import BundledSends
from brokerd.proxy.bundles import MAX_CALLS, BundledAnswer, Outcome
from brokerd.proxy.calls import Call, GrpcStatus, Kind, run
from brokerd.proxy.clients_here import ClientsHere
from brokerd.proxy.forwarded import SEND_MESSAGE, TELEMETRY
from brokerd.proxy.forwarded_call import GRPC_STATUS, MORE_FIELD
from brokerd.proxy.held_calls import Held, HeldCalls
from brokerd.proxy.methods.base import CLIENT_ID, decode
from brokerd.proxy.methods.receive_message import changes_that_give_back
from brokerd.proxy.methods.table import KINDS, Methods
from brokerd.proxy.proxy_call import CANCEL, MAX_REQUEST_BYTES, MORE, ProxyCall, decode_messages
from brokerd.proxy.status import Code, Refusal, refusal_of
from brokerd.replication.replica import Replica
from remoting import codes
from remoting.errors import ConnectionLost, LogboomError, ProtocolError, RequestError
from remoting.frame import Command
from remoting.settings import setting
from remoting.transport.client import RemotingClient
from remoting.transport.connection import RemotingConnection
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

# asked again when the master was lost before it answered: doing these twice is like doing them once
REPEATABLE: Final = frozenset(
    {
        "QueryRoute",
        "QueryAssignment",
        "Heartbeat",
        "NotifyClientTermination",
        "ReceiveMessage",
        "AckMessage",
        "EndTransaction",
        "GetOffset",
        "QueryOffset",
        "PullMessage",
    }
)
# answered from the replica's own copy when there is no master to ask
ANSWERED_HERE: Final = frozenset({"QueryRoute", "QueryAssignment"})
# never forwarded: they need nothing of the master
LOCAL: Final = frozenset({"SyncLiteSubscription"})

_RETRY_S: Final = 0.02
_WATCH_S: Final = 0.1
_ANSWER_RESERVE_MS: Final = 200
_ROUTE_HOLD_MS: Final = 1000
_CALL_TIMEOUT_MS: Final = 30_000
_MAX_BUNDLE_BYTES: Final = 512 * 1024
_NO_MASTER: Final = "this broker group has no master at the moment; try again"
_MASTER_BEHIND: Final = "the master has not answered what it was asked; try again"
_OUTCOME_UNKNOWN: Final = "the master was lost before it answered; whether the call was carried out is unknown"


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    """How long and how much a replica holds back while there is no master."""

    hold_ms: int = setting(5000, "how long a call waits for a master before it is refused", minimum=0, maximum=60_000)
    max_held: int = setting(10_000, "calls that wait for a master at the same time", minimum=0)
    max_held_bytes: int = setting(64 * 1024 * 1024, "their request messages together", minimum=0)
    max_in_flight_bytes: int = setting(
        256 * 1024 * 1024, "request messages together of calls that the master has not answered", minimum=0
    )


_Held: TypeAlias = Held[str]  # the method's name, which is the key as well: each method's calls keep their order


class Forwarder:
    """Carries out calls: here while this broker is the master, by the master otherwise."""

    def __init__(
        self,
        methods: Methods,
        dialler: RemotingClient,
        mastership: Replica,
        *,
        scheduler: Scheduler,
        tasks: TaskOwner,
        settings: ForwardSettings,
    ) -> None:
        self._methods = methods
        self._dialler = dialler
        self._mastership = mastership
        self._scheduler = scheduler
        self._tasks = tasks
        self._settings = settings
        self._clients = ClientsHere(self._now_ms)
        # Those to earlier masters stay open: what they still answer is given back
        self._masters: dict[str, RemotingConnection] = {}
        self._connection: RemotingConnection | None = None
        self._connected_to = ""
        self._takes_single_sends: RemotingConnection | None = None  # of a master of an earlier version
        self._dialling = False
        self._held: HeldCalls[str] = HeldCalls(
            scheduler, self, look_s=_RETRY_S, max_held=settings.max_held, max_bytes=settings.max_held_bytes
        )
        self._here: dict[str, list[Call]] = {}  # by method: to be carried out at the end of the portion
        self._in_flight_bytes = 0  # what their clients asked, which a frozen master does not take
        self._in_flight: dict[int, tuple[RemotingConnection, Callable[[Command | LogboomError], None]]] = {}
        self._watcher: Timer | None = None
        self._stopped = False

    # ---- the handlers of the endpoint

    def execute(self, name: str, calls: Sequence[Call]) -> None:
        """Carry out the calls of one read event for one method."""
        here = self._mastership.serves_clients
        connection = self._master()
        if name == TELEMETRY:
            # settings are answered from this broker's own tables, at once; a master elsewhere is told who is there
            messages = [call.message for call in calls]
            self._methods.handlers[name](calls)
            for call, message in zip(calls, messages, strict=True):
                self._clients.note(connection, call, message)
            return
        if name == "NotifyClientTermination":
            for call in calls:  # no later master is told of them
                self._clients.forget(call.peer.connection, call.metadata.get(CLIENT_ID, ""))
        if name in LOCAL or (here and not self._held.waits(name)):
            self._methods.handlers[name](calls)
            return
        admitted = [self._held.admit(call, (name,), name, self._expires_ms(name, call)) for call in calls]
        if name == SEND_MESSAGE and connection is not None and not self._held.waits(name):
            self._forward_together(connection, admitted)
            return
        for held in admitted:
            if connection is not None and not self._held.waits(name):
                self._forward(connection, held)
            else:
                self._hold(held)

    def _now_ms(self) -> int:
        return int(self._scheduler.time() * 1000)

    def connection_closed(self, connection: object) -> None:
        """A client of this replica went away: the master should not wait for it."""
        self._clients.connection_closed(connection, self._masters.values())

    def stop(self) -> None:
        """Refuse what is held; nothing is carried out any more."""
        self._stopped = True
        if self._watcher is not None:
            self._watcher.cancel()
        for held in self._held.take_all():
            self._hold(held)

    def close(self) -> None:
        """After `stop`, when nobody waits for the master's answers any more."""
        for connection in self._masters.values():
            connection.close()

    # ---- holding

    def _expires_ms(self, name: str, call: Call) -> int:
        expires_ms = self._now_ms() + (_ROUTE_HOLD_MS if name in ANSWERED_HERE else self._settings.hold_ms)
        return expires_ms if call.deadline_ms is None else min(expires_ms, call.deadline_ms - _ANSWER_RESERVE_MS)

    def _hold(self, held: _Held) -> None:
        if self._stopped:
            self._refuse(held.what, held.call, Refusal(Code.HA_NOT_AVAILABLE, "this broker is stopping"))
        elif not self._held.hold(held):
            self._refuse(held.what, held.call, Refusal(Code.TOO_MANY_REQUESTS, _NO_MASTER))

    def _hold_again(self, held: _Held) -> None:
        """The master did not carry it out, however long it had it."""
        self._hold(held._replace(expires_ms=self._expires_ms(held.what, held.call)))

    # ---- `held_calls.Carrier`

    def look(self) -> None:
        """Each attempt sees by itself whether there is a master."""

    def attempt(self, held: _Held) -> _Held | None:
        if self._mastership.serves_clients:
            self._here.setdefault(held.what, []).append(held.call)
            return None
        connection = self._master()
        if connection is None:
            return held
        self._forward(connection, held)
        return None

    def expire(self, held: _Held) -> None:
        """It is answered without a master, if it can be."""
        if held.what in ANSWERED_HERE:
            self._here.setdefault(held.what, []).append(held.call)
        else:
            self._refuse(held.what, held.call, Refusal(Code.HA_NOT_AVAILABLE, _NO_MASTER))

    def carry_out(self) -> None:
        here, self._here = self._here, {}
        for name, calls in here.items():
            run(self._methods.handlers[name], calls)

    # ---- the connection to the master

    def _master(self) -> RemotingConnection | None:
        """The open connection to the present master, if that is another broker; dials it in the background when there is none."""
        if self._mastership.is_master or not (address := self._mastership.master_address):
            return None
        connection = self._connection
        if connection is not None and connection.is_open and self._connected_to == address:
            return connection
        if not self._dialling:
            self._dialling = True
            self._tasks.spawn(self._dial(address), f"connect to master {address}")
        return None

    async def _dial(self, address: str) -> None:
        pause_s = 0.0
        try:
            connection = self._masters.get(address)
            if connection is None or not connection.is_open:
                connection = await self._dialler.dial(address, {codes.PROXY_CALL: self._clients.handle_pushes})
                self._masters = {where: each for where, each in self._masters.items() if each.is_open}
                self._masters[address] = connection
            self._connection = connection
            self._connected_to = address
            self._clients.tell_all(connection)
        except ConnectionLost as error:
            log.info("%s", error)
            pause_s = _RETRY_S
        finally:
            self._scheduler.call_later(pause_s, self._may_dial)

    def _may_dial(self) -> None:
        self._dialling = False

    # ---- forwarding

    def _may_forward(self, held: _Held, more_bytes: int = 0) -> bool:
        """Whether there is room for it behind so many others; it is refused otherwise."""
        name, call = held.what, held.call
        if len(call.message) > MAX_REQUEST_BYTES:
            text = f"a request of more than {MAX_REQUEST_BYTES} bytes must be sent to the group's master"
            self._refuse(name, call, Refusal(Code.BAD_REQUEST, text))
            return False
        if self._in_flight_bytes + more_bytes + len(call.message) > self._settings.max_in_flight_bytes:
            self._refuse(name, call, Refusal(Code.TOO_MANY_REQUESTS, _MASTER_BEHIND))
            return False
        return True

    def _forward_together(self, connection: RemotingConnection, sends: Sequence[_Held]) -> None:
        """Forward sends in as few requests as may be, in their order."""
        if self._takes_single_sends is connection:
            for held in sends:
                self._forward(connection, held)
            return
        bundle: list[_Held] = []
        size = 0
        for held in sends:
            if not self._may_forward(held, size):
                continue
            if bundle and (len(bundle) == MAX_CALLS or size + len(held.call.message) > _MAX_BUNDLE_BYTES):
                self._request_together(connection, bundle)
                bundle, size = [], 0
            bundle.append(held)
            size += len(held.call.message)
        if len(bundle) > 1:
            self._request_together(connection, bundle)
        elif bundle:
            self._request(connection, bundle[0])

    def _forward(self, connection: RemotingConnection, held: _Held) -> None:
        name, call = held.what, held.call
        if not self._may_forward(held):
            return
        if KINDS.get(name) == Kind.SERVER_STREAM:
            call.when_writable(lambda: self._request(connection, held))
        else:
            self._request(connection, held)

    def _request(self, connection: RemotingConnection, held: _Held) -> None:
        name, call = held.what, held.call
        origin = self._clients.origin(name, call)
        size = len(call.message)

        def cancelled() -> None:
            if connection.is_open:
                connection.notify(codes.PROXY_CALL, ProxyCall(CANCEL, origin.call_id).to_ext())

        def answered(result: Command | LogboomError) -> None:
            if self._in_flight.pop(origin.call_id, None) is not None:
                self._in_flight_bytes -= size
                call.on_cancel = None
                self._answered(connection, held, origin, result)
            elif name == "ReceiveMessage" and not isinstance(result, LogboomError):
                self._give_back(connection, call, result)  # given up because the master had changed

        call.on_cancel = cancelled
        self._in_flight[origin.call_id] = connection, answered
        self._in_flight_bytes += size
        self._watch()
        timeout_ms = (origin.timeout_ms or _CALL_TIMEOUT_MS) + 1000
        connection.request(codes.PROXY_CALL, origin.to_ext(), call.message, timeout_ms, answered)

    def _request_together(self, connection: RemotingConnection, sends: Sequence[_Held]) -> None:
        bundle_id = self._clients.next_call_id()
        bundle = BundledSends(bundle_id, [(self._clients.origin(held.what, held.call), held) for held in sends])

        def cancelled(call_id: int) -> None:
            if connection.is_open:
                connection.notify(codes.PROXY_CALL, ProxyCall(CANCEL, call_id).to_ext())

        def answered(result: Command | LogboomError) -> None:
            if self._in_flight.pop(bundle_id, None) is None:
                return  # given up because the master had changed
            self._in_flight_bytes -= bundle.size_bytes
            if isinstance(result, LogboomError) or result.code != codes.SUCCESS:
                self._bundle_failed(connection, bundle, result)
                return
            for answer, held in bundle.take(result):
                self._in_bundle_answered(answer, held)
            if bundle.left:
                ask(ProxyCall(MORE, bundle_id).to_ext(), b"")

        def ask(ext: Mapping[str, str], body: bytes) -> None:
            self._in_flight[bundle_id] = connection, answered
            self._in_flight_bytes += bundle.size_bytes
            self._watch()
            timeout_ms = bundle.timeout_ms(_CALL_TIMEOUT_MS) + 1000
            connection.request(codes.PROXY_CALL, ext, body, timeout_ms, answered)

        for origin, held in bundle.left.values():
            held.call.on_cancel = partial(cancelled, origin.call_id)
        ask(*bundle.request())

    def _bundle_failed(
        self, connection: RemotingConnection, bundle: BundledSends, result: Command | LogboomError
    ) -> None:
        """Nothing more comes of it. A master of an earlier version knows no bundles, and did nothing."""
        is_unknown = not isinstance(result, LogboomError) and result.code == codes.REQUEST_CODE_NOT_SUPPORTED
        if is_unknown:
            self._takes_single_sends = connection
        for origin, held in bundle.take_all():
            held.call.on_cancel = None
            if not is_unknown:
                self._answered(connection, held, origin, result)
            elif held.call.live:
                self._forward(connection, held)

    def _in_bundle_answered(self, answer: BundledAnswer, held: _Held) -> None:
        call = held.call
        call.on_cancel = None
        if not call.live:
            return
        if answer.outcome is Outcome.ANSWERED:
            call.answer(answer.content)
        elif answer.outcome is Outcome.GIVEN_BACK:
            self._hold_again(held)
        else:
            call.fail(GrpcStatus.INTERNAL, answer.content.decode("utf-8", "replace") or "the master failed")

    def _watch(self) -> None:
        """While calls wait for an answer, look whether their master is the master still.

        A frozen master answers nothing and closes nothing: only the election of another one shows that waiting is in vain.
        """
        if self._watcher is None and self._in_flight and not self._stopped:
            self._watcher = self._scheduler.call_later(_WATCH_S, self._look)

    def _look(self) -> None:
        self._watcher = None
        here = self._mastership.is_master
        address = self._mastership.master_address
        if here or (address and address != self._connected_to):
            lost = ConnectionLost(f"{self._connected_to} is not the master any more")
            for connection, answered in list(self._in_flight.values()):
                if here or connection is not self._connection or self._connected_to != address:
                    answered(lost)
        self._watch()

    def _answered(
        self, connection: RemotingConnection, held: _Held, origin: ProxyCall, result: Command | LogboomError
    ) -> None:
        name, call = held.what, held.call
        if not call.live:
            if name == "ReceiveMessage" and not isinstance(result, LogboomError):
                self._give_back(connection, call, result)
            return
        if isinstance(result, LogboomError):
            if name in REPEATABLE and not self._stopped:
                self._hold_again(held)
            else:
                self._refuse(name, call, Refusal(Code.HA_NOT_AVAILABLE, _OUTCOME_UNKNOWN))
        elif result.code == codes.SUCCESS:
            self._deliver(connection, name, call, origin, result)
        elif result.code == codes.SERVICE_NOT_AVAILABLE:
            self._hold_again(held)  # it is not the master any more, so it did nothing
        elif GRPC_STATUS in result.ext:
            call.fail(GrpcStatus.INTERNAL, result.remark or "the master failed")
        else:
            self._refuse(name, call, refusal_of(RequestError(result.code, result.remark or "the master failed")))

    def _give_back(self, connection: RemotingConnection, call: Call, result: Command) -> None:
        """The client left while the master took messages for it: let them be seen again soon."""
        if result.code != codes.SUCCESS or not connection.is_open:
            return
        for change in changes_that_give_back(call.message, decode_messages(bytes(result.body))):
            origin = self._clients.origin("ChangeInvisibleDuration", call)
            connection.notify(codes.PROXY_CALL, origin.to_ext(), change)

    def _deliver(
        self, connection: RemotingConnection, name: str, call: Call, origin: ProxyCall, result: Command
    ) -> None:
        """Hand the answer to the client; fetch the next part when it has read this one."""
        try:
            messages = decode_messages(bytes(result.body))
        except ProtocolError as error:
            call.fail(GrpcStatus.INTERNAL, str(error))
            return
        if KINDS.get(name, Kind.UNARY) == Kind.UNARY:
            if len(messages) == 1:
                call.answer(messages[0])
            else:
                call.fail(GrpcStatus.INTERNAL, "the master gave no answer")
            return
        call.send(messages)
        if MORE_FIELD not in result.ext:
            call.finish()
            return

        def answered(part: Command | LogboomError) -> None:
            if not isinstance(part, LogboomError) and part.code == codes.SUCCESS:
                if call.live:
                    self._deliver(connection, name, call, origin, part)
            else:
                call.fail(GrpcStatus.UNAVAILABLE, "the master was lost in the middle of its answer")

        more = ProxyCall(MORE, origin.call_id).to_ext()
        call.when_writable(lambda: connection.request(codes.PROXY_CALL, more, b"", _CALL_TIMEOUT_MS, answered))

    def _refuse(self, name: str, call: Call, refusal: Refusal) -> None:
        """Refuse a call the way its method does."""
        request_class, refuse = self._methods.refusals[name]
        request: Any = None
        try:
            request = decode(call, request_class)
        except Refusal as undecodable:
            refusal = undecodable
        refuse(call, request, refusal)
