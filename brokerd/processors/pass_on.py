"""Administration that reaches a replica: passed on to the master, whose answer goes back.

Tools delete topics on every broker of a group, in any order, and take a refusal for the end. Whether the sender may was decided
before; what goes to the master carries this broker's own proof, as all that brokers ask one another. Two brokers that each take
the other for the master could pass a request to and fro; a small limit on those that are under way ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from remoting.access.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from remoting.errors import LogboomError, NotMaster
from remoting.frame import Command
from remoting.transport.client import RemotingClient
from remoting.transport.connection import RemotingConnection
from remoting.transport.tasks import TaskOwner

MAX_UNDER_WAY: Final = 16
_TIMEOUT_MS: Final = 5000
_SENDERS_PROOF: Final = (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)


@dataclass(slots=True, eq=False)
class PassOn:
    """Call it with a request. `master_address` is empty while no master is known."""

    client: RemotingClient
    master_address: Callable[[], str]
    tasks: TaskOwner
    under_way: int = 0

    def __call__(self, connection: RemotingConnection, request: Command) -> None:
        address = self.master_address()
        if not address or self.under_way >= MAX_UNDER_WAY:
            connection.respond_error(request, NotMaster())
            return
        self.under_way += 1
        body = bytes(request.body)
        request.ext = without_proof(request.ext)
        self.tasks.spawn(self._ask(address, connection, request, body), f"request {request.code} for the master")

    async def _ask(self, address: str, connection: RemotingConnection, request: Command, body: bytes) -> None:
        try:
            master = await self.client.connection(address)
            answer = await master.call(request.code, request.ext, body, _TIMEOUT_MS)
            connection.respond(request, answer.code, answer.ext, answer.body, answer.remark)
        except LogboomError as error:
            connection.respond_error(request, NotMaster(f"the master at {address} did not answer: {error}"))
        finally:
            self.under_way -= 1


def without_proof(ext: Mapping[str, str]) -> dict[str, str]:
    """A request's fields but for its sender's signature: this broker signs what it passes on."""
    return {name: text for name, text in ext.items() if name not in _SENDERS_PROOF}
