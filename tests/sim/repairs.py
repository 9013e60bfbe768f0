"""How a simulated broker has its disk repaired: the code of the daemons, over the simulated network and the simulated time.

A start on a damaged log asks others for what is damaged; the scrubber of a running broker reads all of it again, and asks them,
too. Both are coroutines of the product, and run on the node's `SimLoop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from brokerd.composition.mending import mend_disk
from brokerd.composition.scrubbing import RangeFetcher, build_scrubber
from brokerd.repair.fetch import Asking
from brokerd.repair.log_range import NONCE_BYTES
from brokerd.repair.scrubber import Machine, Scrubber
from brokerd.repair.serve import RangeServer
from brokerd.repair.settings import ScrubSettings
from brokerd.replication.controllers.session import SessionRequest
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, DamagedRange, LogboomError, RequestError, RequestTimeout, StorageError
from remoting.frame import Command
from remoting.settings import Live
from remoting.transport.client import RemotingClient
from tests.sim.controller import Connection
from tests.sim.loop import SimLoop

if TYPE_CHECKING:
    from brokerd.replication.epochs.epoch_list import EpochEntry
    from tests.sim.broker import SimBroker

SECRET = b"known to this cluster only"
_BYTES_PER_S = 1 << 20
# The scrubber's patience with what nobody can give is a second, not twenty: a story is short.
_HURRY = 20
_MOST_PAUSE_S = 0.5
_RETRY_S = 0.5
_FIRST_TOKEN = 1 << 50  # beyond those of the same broker's session with the controllers


class SimClient:
    """`RemotingClient` of a simulated broker, as far as repairs use it. One of each life."""

    def __init__(self, broker: SimBroker, loop: SimLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._token = _FIRST_TOKEN

    async def call(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: Bytes = b"",
        *,
        timeout_ms: int = 3000,
    ) -> Command:
        """Ask a controller or a broker of the group."""
        broker, loop = self._broker, self._loop
        future: asyncio.Future[Command] = loop.create_future()
        self._token += 1
        request = SessionRequest(self._token, address, code, dict(ext or {}), bytes(body))
        life = broker.life

        def answered(source: Any, code: int, ext: dict[str, str], body: bytes) -> None:
            answer: Any = Command(code, request.token, ext, body, codes.FLAG_RESPONSE)
            if code != codes.SUCCESS:
                answer = RequestError(code, f"{address} answered code {code}")
            broker.network.send(
                source, broker, lambda: broker.do(life, broker.guarded(lambda: loop.settle(future, answer)))
            )

        def failed(error: LogboomError) -> None:
            broker.after(0, broker.guarded(lambda: loop.settle(future, error)))

        controller, peer = broker.controller_at(address), broker.broker_at(address)
        if controller is not None:
            source = controller
            broker.network.send(
                broker,
                controller,
                lambda: controller.handle(broker, life, request, lambda *answer: answered(source, *answer)),
            )
        elif peer is not None and peer.is_up and not broker.network.is_cut(broker.name, peer.name):
            broker.network.send(
                broker,
                peer,
                peer.guarded(lambda: peer.repairs.serve(broker, request, lambda *answer: answered(peer, *answer))),
            )
        else:
            failed(ConnectionLost(f"cannot connect to {address}"))
        broker.after(
            timeout_ms, broker.guarded(lambda: loop.settle(future, RequestTimeout(f"{address} does not answer")))
        )
        return await future


async def mend(broker: SimBroker, loop: SimLoop, met: DamagedRange | None) -> bool:
    """What a start that met damage does before it is tried again."""
    client = cast(RemotingClient, SimClient(broker, loop))
    asking = Asking(client, broker.group_key, SECRET, lambda: broker.rng.randbytes(NONCE_BYTES))
    mended = await mend_disk(broker.disk, broker.store_settings, broker.place, asking, met)
    broker.world.note(f"{broker.name} {'has mended' if mended else 'could not mend'} its log before the start")
    if mended:
        broker.cluster.happened("mend", broker)
    return mended


class Repairs:
    """What a running broker gives others of its log, and its scrubber. One of each life."""

    def __init__(self, broker: SimBroker, loop: SimLoop) -> None:
        core, driver = broker.core, broker.driver

        def epochs() -> Sequence[EpochEntry]:
            return driver.machine.epochs.entries

        self._broker = broker
        self._loop = loop
        self._server = RangeServer((SECRET,), broker.group_key, core.store.commitlog, epochs)
        client = cast(RemotingClient, SimClient(broker, loop))
        self.scrubber: Scrubber = build_scrubber(
            core,
            Machine(broker.disk, lambda: broker.time() * _HURRY, lambda: 0.0, broker.wall_ms),
            Live(ScrubSettings(_BYTES_PER_S, broker.cluster.scrub_round_ms)),
            RangeFetcher(client, broker.group_key, (SECRET,), epochs),
            broker.other_addresses,
        )
        self._woken = asyncio.Event()
        core.store.damage_listeners.append(lambda _: broker.after(0, self._wake))

    def start(self) -> None:
        self._loop.spawn(self._scrub())

    def serve(self, asker: SimBroker, request: SessionRequest, answer: Any) -> None:
        """READ_LOG_RANGE of another broker."""
        if not self._broker.is_up:
            return
        command = Command(request.code, request.token, dict(request.ext), request.body)
        connection = Connection(asker)
        connection.expect(command, answer)
        try:
            self._server.handle(connection, command)
        except LogboomError as error:
            connection.respond_error(command, error)

    def _wake(self) -> None:
        self._woken.set()
        self._loop.turn()

    async def _scrub(self) -> None:
        """What `Scrubber` does when it is started, but an error that nobody expected ends the story."""
        while True:
            self._woken.clear()
            repaired = self.scrubber.repairer.ledger.ranges_repaired
            try:
                pause_s = await self.scrubber.step()
            except StorageError as error:
                self._broker.world.note(f"{self._broker.name} looks for damage again in a while: {error}")
                pause_s = _RETRY_S
            if self.scrubber.repairer.ledger.ranges_repaired > repaired:
                self._broker.world.note(f"{self._broker.name} has repaired its log")
                self._broker.cluster.happened("repair", self._broker)
            timer = self._loop.call_later(min(pause_s, _MOST_PAUSE_S), self._woken.set)
            await self._woken.wait()
            timer.cancel()
