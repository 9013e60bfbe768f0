"""A designated election: the present master hands over first, if it can, and may say no."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import Place, RemotingServer, each
from tests.unit.controllerd.single import Single, single


@asynccontextmanager
async def group(directory: Path, handlers: dict[int, Handler]) -> AsyncIterator[Single]:
    """A controller, and a group whose brokers all live at one listener with these handlers."""
    server = RemotingServer(Place("127.0.0.1", 0), handlers)
    await server.start()
    try:
        async with single(directory, "election.notify=false") as one:
            for broker_id in (1, 2):
                await one.register(broker_id, brokerAddress=f"127.0.0.1:{server.port}")
                await one.live(broker_id)
            assert (await one.elect(1)).code == codes.SUCCESS
            assert (await one.alter([1, 2])).code == codes.SUCCESS
            yield one
    finally:
        await server.close()


async def test_the_master_is_asked_before_the_election(tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []
    epochs: list[int] = []

    def hand_over(connection: RemotingConnection, request: Command) -> None:
        asked.append(request.ext)
        epochs.append(one.controller._machine.replicas.groups["broker-a"].master_epoch)
        connection.respond(request, ext={"maxOffset": "100"})

    async with group(tmp_path, {codes.HAND_OVER_MASTER: each(hand_over)}) as one:
        answer = await one.elect(2, designateElect="true")
        assert (answer.code, answer.ext["masterBrokerId"], answer.remark) == (codes.SUCCESS, "2", None)
        assert epochs == [1], "nothing was decided yet"
        assert {"brokerName": "broker-a", "masterEpoch": "1", "brokerId": "2"}.items() <= asked[0].items()
        assert int(asked[0]["holdMs"]) >= 1000
        assert (await one.elect(2, designateElect="true")).code == codes.CONTROLLER_MASTER_STILL_EXIST
        assert (await one.elect(9, designateElect="true")).code == codes.CONTROLLER_ELECT_MASTER_FAILED
        assert len(asked) == 1, "who can refuse without it, does not stop a master's work"


async def test_a_master_that_says_no_stays(tmp_path: Path) -> None:
    def refuse(connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, codes.SERVICE_NOT_AVAILABLE, remark="broker 2 still lacks 7 bytes of the log")

    async with group(tmp_path, {codes.HAND_OVER_MASTER: each(refuse)}) as one:
        answer = await one.elect(2, designateElect="true")
        assert answer.code == codes.CONTROLLER_ELECT_MASTER_FAILED
        assert answer.remark == "no switch now: broker 2 still lacks 7 bytes of the log"
        info = await one.info()
        assert (info["masterBrokerId"], info["masterEpoch"]) == (1, 1)


async def test_a_master_of_the_original_is_switched_as_there(tmp_path: Path) -> None:
    async with group(tmp_path, {}) as one:
        answer = await one.elect(2, designateElect="true")
        assert (answer.code, answer.ext["masterBrokerId"]) == (codes.SUCCESS, "2")
        assert (answer.remark or "").startswith("the master cannot hand over: what broker 2 lacks")


async def test_a_group_that_moved_on_meanwhile_is_left_alone(tmp_path: Path) -> None:
    async def moves_on(connection: RemotingConnection, request: Command) -> None:
        one.brokers[0].abort()
        await one.until(lambda group: group["masterEpoch"] > 1, beating=(one.brokers[1], 2, {}))
        connection.respond(request)

    def handle(connection: RemotingConnection, requests: object) -> None:
        for request in requests:  # type: ignore[attr-defined]
            one.controller._tasks.spawn(moves_on(connection, request), "move on")

    async with group(tmp_path, {codes.HAND_OVER_MASTER: handle}) as one:
        answer = await one.elect(2, designateElect="true")
        assert answer.code == codes.CONTROLLER_MASTER_STILL_EXIST
        assert (await one.info())["masterEpoch"] == 2, "one election, not two"
