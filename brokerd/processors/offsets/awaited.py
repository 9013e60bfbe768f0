"""What a replica does when it is asked how far a group or a queue is: only the master knows, so it asks the master.

Clients ask a replica when their route has no master: just after one was lost, when the one that was elected has not heard of it,
or when their route is an old one. What a replica has of offsets may be old, or nothing at all in a copy that has just begun; a
client that is told 0, or that there is none, reads everything again. So while no master is known the question waits for one.

It waits for longer than clients do. To be refused is no help to all of them: Java clients before version 5 and those in C++ take
whatever a broker refuses for a group that never consumed. Silence lets Java's ask again, of either version.

Where nobody is elected, a replica whose master is away answers with what it has: readers are served from there until it is back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from brokerd.loop.scheduler import Scheduler
from brokerd.processors.pass_on import without_proof
from remoting import codes
from remoting.errors import LogboomError, NotMaster, RequestError
from remoting.frame import Command
from remoting.transport.client import RemotingClient
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.tasks import TaskOwner

MAX_HELD: Final = 10_000  # questions that wait for a master or its answer
HOLD_MS: Final = 6000  # Java and C++ wait 5 s for the answer, Go 3 s
_LOOK_S: Final = 0.05
_AT_ONCE: Final = 100  # in a turn of the loop
_TIMEOUT_MS: Final = 1500
# A broker that is asked by another one does not ask on: two that take each other for the master would never end
_ASKED_BY_BROKER: Final = "askedByReplica"


class Standing(Protocol):
    """What the broker is among the others of its group; `replication.replica.Replica`."""

    @property
    def is_master(self) -> bool: ...

    @property
    def master_address(self) -> str:
        """Empty when none is known."""

    @property
    def is_left_alone(self) -> bool:
        """Whether this replica's master is away, and nobody elects another one."""


@dataclass(slots=True, eq=False)
class _Question:
    """One request; `answer` is its handler, for a broker that may answer itself."""

    answer: Handler
    connection: RemotingConnection
    request: Command
    expires_ms: int


class AwaitedMaster:
    """Call it with the handler that a master has, and a request."""

    def __init__(self, standing: Standing, client: RemotingClient, scheduler: Scheduler, tasks: TaskOwner) -> None:
        self._standing = standing
        self._client = client
        self._scheduler = scheduler
        self._tasks = tasks
        self._waiting: deque[_Question] = deque()
        self._under_way = 0
        self._looks = False  # a look is due

    def __len__(self) -> int:
        """How many wait, for a master or for its answer."""
        return len(self._waiting) + self._under_way

    def __call__(self, answer: Handler, connection: RemotingConnection, request: Command) -> None:
        if len(self) >= MAX_HELD:
            text = f"{MAX_HELD} requests wait for the master of this broker group already; try again"
            connection.respond_error(request, RequestError(codes.SYSTEM_BUSY, text))
            return
        request.body = bytes(request.body)  # it is a view of what was read together with it
        question = _Question(answer, connection, request, self._now_ms() + HOLD_MS)
        if not self._attempt(question):
            self._hold(question)

    def _now_ms(self) -> int:
        return int(self._scheduler.time() * 1000)

    def _attempt(self, question: _Question) -> bool:
        """Have it answered, if somebody can."""
        standing, connection, request = self._standing, question.connection, question.request
        if standing.is_master or standing.is_left_alone:
            question.answer(connection, [request])
        elif _ASKED_BY_BROKER in request.ext:
            connection.respond_error(request, NotMaster())
        elif address := standing.master_address:
            self._under_way += 1
            self._tasks.spawn(self._ask(address, question), f"request {request.code} for the master")
        else:
            return False
        return True

    async def _ask(self, address: str, question: _Question) -> None:
        request = question.request
        try:
            master = await self._client.connection(address)
            ext = without_proof(request.ext) | {_ASKED_BY_BROKER: "true"}
            answer = await master.call(request.code, ext, request.body, _TIMEOUT_MS)
        except LogboomError:
            self._hold(question)
        else:
            if answer.code == codes.SERVICE_NOT_AVAILABLE:  # it is not the master any more, or not yet
                self._hold(question)
            else:
                question.connection.respond(request, answer.code, answer.ext, answer.body, answer.remark)
        finally:
            self._under_way -= 1

    # ---- waiting

    def _hold(self, question: _Question) -> None:
        self._waiting.append(question)
        self._look_later(_LOOK_S)

    def _look_later(self, delay_s: float) -> None:
        if not self._looks:
            self._looks = True
            self._scheduler.call_later(delay_s, self._look)

    def _look(self) -> None:
        """Try those that wait, from the first on, a portion of them."""
        self._looks = False
        now_ms, attempts = self._now_ms(), 0
        for _ in range(len(self._waiting)):
            if attempts == _AT_ONCE:
                break
            question = self._waiting.popleft()
            if not question.connection.is_open:
                continue
            if now_ms >= question.expires_ms:
                text = "this broker is a replica and knows no master that answers; ask again"
                question.connection.respond_error(question.request, NotMaster(text))
            elif self._attempt(question):
                attempts += 1
            else:
                self._waiting.append(question)
        if self._waiting:
            self._look_later(0 if attempts == _AT_ONCE else _LOOK_S)
