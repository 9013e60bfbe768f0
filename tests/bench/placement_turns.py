"""How long event loops stand still for placements of many topics: a broker's at a switch, and that of the controllers' leader.

    python -m tests.bench.placement_turns [--topics N]

Two broker groups of three brokers each, all of whose topics are placed. The controller is a real one, and so are a broker's
journal of placements, on a log in memory, and what keeps it with the controllers; both are in this process. What the loop runs at
once is a turn, and CPU time is what it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from brokerd.cluster.placements import PlacementFollower
from brokerd.loop import tuning
from brokerd.metadata.configs import TopicConfig
from brokerd.placement.service import PlacementService
from controllerd.placements.records import GroupPrepared, PlacementActivated, PlacementProposed, apply
from controllerd.placements.state import PlacementsState
from controllerd.processors.placements import PlacementsProcessor
from remoting import codes
from remoting.facts.placements import ShareFact
from remoting.frame import Command
from tests.bench.harness import Row
from tests.support.memory_log import MemoryRecordLog
from tests.unit.controllerd.single import Single, single

TOPICS: Final = 10_000
GOAL_MS: Final = 20.0

_NAMES: Final = ("broker-a", "broker-b")
_BROKERS: Final = 3  # of a group
_QUEUES: Final = 8
_EPOCH: Final = 1


class LoopTurns:
    """How long callbacks of the running loop take, in CPU time."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._sum_s = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """While the block runs."""
        plain = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began_s = time.thread_time()
            plain(handle)
            took_s = time.thread_time() - began_s
            self._longest_s = max(self._longest_s, took_s)
            self._sum_s += took_s

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = plain  # type: ignore[method-assign]

    def take_ms(self) -> tuple[float, float]:
        """The longest one since the last call, and all together."""
        longest_s, sum_s = self._longest_s, self._sum_s
        self._longest_s = self._sum_s = 0.0
        return 1000 * longest_s, 1000 * sum_s


class Answering:
    """A connection that keeps what it would send."""

    def __init__(self) -> None:
        self.body = b""

    def respond(self, _request: Command, *, body: bytes = b"", **_more: object) -> None:
        self.body = bytes(body)


class Master:
    broker_id, is_master, master_epoch = 0, True, _EPOCH


class Asking:
    """Brokers' requests to the controller, each answered in a turn of its own."""

    def __init__(self, one: Single, turns: LoopTurns) -> None:
        controller = one.controller
        self._processor = PlacementsProcessor(
            controller._placing, controller._groups, lambda: controller._machine.placements
        )
        self._turns = turns
        self.longest_ms = 0.0  # of the controller's turns
        self.sum_ms = 0.0
        self.count = 0
        self.bytes = 0

    async def ask(self, code: int, ext: Mapping[str, str], body: bytes) -> Command:
        connection: Any = Answering()
        await asyncio.sleep(0)
        began_s = time.thread_time()
        self._processor._report(connection, Command(code, ext=dict(ext), body=body))
        took_ms = 1000 * (time.thread_time() - began_s)
        self.longest_ms, self.sum_ms = max(self.longest_ms, took_ms), self.sum_ms + took_ms
        self.count, self.bytes = self.count + 1, self.bytes + len(connection.body)
        self._turns._sum_s -= took_ms / 1000
        await asyncio.sleep(0)
        return Command(codes.SUCCESS, body=connection.body)

    def take(self) -> str:
        """What was asked since the last call, for people."""
        told = f"{self.count} answers, {self.bytes:,} bytes, {self.sum_ms:.1f} ms, the longest {self.longest_ms:.1f} ms"
        self.longest_ms, self.sum_ms, self.count, self.bytes = 0.0, 0.0, 0, 0
        return told


def placed(topics: int) -> PlacementsState:
    """All of them in force, in both groups."""
    state = PlacementsState()
    shares = tuple(ShareFact(name, _QUEUES) for name in _NAMES)
    for number in range(topics):
        topic = f"orders-of-{number:05}"
        state = apply(state, PlacementProposed(topic, number + 1, shares, _NAMES))
        for name in _NAMES:
            state = apply(state, GroupPrepared(topic, name))
        state = apply(state, PlacementActivated(topic))
    return state


async def _measure(topics: int, directory: Path) -> list[Row]:
    rows: list[Row] = []

    def row(name: str, longest_ms: float, more: str = "") -> None:
        met = longest_ms <= GOAL_MS
        rows.append(Row(f"{topics:,} placed topics: {name}", f"{longest_ms:.1f} ms{more}", f"<= {GOAL_MS:.0f} ms", met))
        print(f"{rows[-1].name}: {rows[-1].figure}  {rows[-1].goal}", flush=True)

    turns = LoopTurns()
    began_s = time.thread_time()
    state = placed(topics)
    print(f"{4 * topics:,} records applied by the controllers: {time.thread_time() - began_s:.2f} s", flush=True)
    configs = {name: TopicConfig(name, _QUEUES, _QUEUES, attributes={"message.type": "FIFO"}) for name in state.topics}
    async with single(directory) as one:
        machine = one.controller._machine
        for name in _NAMES:
            for broker_id in range(1, 1 + _BROKERS):
                await one.register(broker_id, name)
            await one.live(1, name)
            await one.elect(1, name)
        async with asyncio.timeout(60):
            while machine.features.level < 2:
                await asyncio.sleep(0.01)
        machine._take("placements", state, None)
        if machine._tail is not None:
            machine._tail["placements"] = state
        asking = Asking(one, turns)
        epochs = {name: group.master_epoch for name, group in machine.replicas.groups.items()}

        # replicas ask
        for broker_id in range(2, 1 + _BROKERS):
            for name in _NAMES:
                await asking.ask(codes.REPORT_PLACEMENTS, {"brokerName": name, "brokerId": str(broker_id)}, b"")
        row("the controller, asked by a replica", asking.longest_ms, f" ({asking.take()})")

        # a broker that follows, and is made the master
        log = MemoryRecordLog()
        loop = asyncio.get_running_loop()
        ends = dict.fromkeys(range(_QUEUES), 1000)
        services = {
            name: PlacementService(log if name == "broker-a" else MemoryRecordLog(), name, lambda _: dict(ends), loop)
            for name in _NAMES
        }
        followers = {}
        for name, service in services.items():
            service.rebuild()
            service.catch_up()
            service.lead()
            master: Any = Master()
            master = type("Leading", (), {"broker_id": 1, "is_master": True, "master_epoch": epochs[name]})()
            followers[name] = PlacementFollower(service, master, lambda: configs, asking.ask, name)
        service = services["broker-a"]
        for name in _NAMES:
            followers[name].start()
        for name in _NAMES:
            await _until_known(services[name], state)
        await asyncio.sleep(3)  # what is reported is compared with what is placed
        asking.take()
        with turns.counted():
            turns.take_ms()
            await asyncio.sleep(5)
            longest_ms, sum_ms = turns.take_ms()
        row("nothing changes for 5 s: any turn", longest_ms, f" (all: {sum_ms:.0f} ms)")
        row("the controller, asked by masters that know all", asking.longest_ms, f" ({asking.take()})")

        with turns.counted():
            service.step_down()
            service.rebuild()
            await asyncio.sleep(0.5)
        row("stepping down", turns.take_ms()[0])
        row("while stepping down, the controller", asking.longest_ms, f" ({asking.take()})")
        await followers["broker-a"].close()
        asking.take()
        with turns.counted():
            service.catch_up()
            service.lead()
            follower = PlacementFollower(
                service, followers["broker-a"]._replica, lambda: configs, asking.ask, "broker-a"
            )
            began_s = time.perf_counter()
            follower.start()
            await _until_known(service, state)
            took_ms = 1000 * (time.perf_counter() - began_s)
            await asyncio.sleep(1)
            longest_ms, sum_ms = turns.take_ms()
        row("taking over", longest_ms, f" (all turns {sum_ms:.0f} ms, all is known after {took_ms:.0f} ms)")
        row("the controller, asked by a new master", asking.longest_ms, f" ({asking.take()})")
        with turns.counted():
            service.rolled()
            await asyncio.sleep(0.5)
        row("a snapshot for a new file of the log", turns.take_ms()[0])
        asking.take()
        with turns.counted():
            for name in ("orders-of-00001", "orders-of-00002"):
                configs[name] = TopicConfig(name, _QUEUES, 4, attributes={"message.type": "FIFO"})
            for each in (follower, followers["broker-b"]):
                each.topics_changed()
            async with asyncio.timeout(15):
                while any(
                    machine.placements.topics[name].active.shares[0].queues != 4
                    for name in ("orders-of-00001", "orders-of-00002")
                ):  # type: ignore[union-attr]
                    await asyncio.sleep(0.01)
            longest_ms, sum_ms = turns.take_ms()
        row("two topics change: any turn", longest_ms, f" (all: {sum_ms:.0f} ms)")
        row("while they change, the controller's answers", asking.longest_ms, f" ({asking.take()})")
        await follower.close()
        await followers["broker-b"].close()
    return rows


async def _until_known(service: PlacementService, state: PlacementsState) -> None:
    async with asyncio.timeout(60):
        while service.revision < state.revision or len(service.table.topics) < len(state.topics):
            await asyncio.sleep(0.01)


def run(topics: int = TOPICS) -> list[Row]:
    tuning.settle()
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_measure(topics, Path(directory)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=TOPICS, help="placed (%(default)s)")
    run(parser.parse_args().topics)


if __name__ == "__main__":
    main()
