"""What a receive over gRPC that waits and gets nothing costs the broker's own code: CPU time in process, without sockets.

    python -m tests.bench.waiting_receives [--clients N] [--groups N] [--profile]

Connections as the endpoint makes them, over a core on a disk in memory, whose loop is moved by hand: each client's receive is
taken in, a turn of the loop each, and when its 20 s are over it is answered. Bytes are those of `idle_clients`. The median of
several rounds. With --profile the functions that take the time are told.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from brokerd.loop import tuning
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.native.library import load
from brokerd.proxy.calls import Kind, Method, Peer, run
from brokerd.proxy.grpc import SERVICE_PATH, GrpcConnection, GrpcLimits, Intake
from brokerd.proxy.heads import CallHeads
from brokerd.proxy.http2.native_hpack import native_block_readers
from brokerd.proxy.methods.base import Services
from brokerd.proxy.methods.table import KINDS, Methods, build_methods
from brokerd.replication.roles.effects import Role
from brokerd.store.settings import StoreSettings
from remoting.record.hosts import pack_host
from tests.bench.idle_clients import IdleClient
from tests.bench.sends import TOPIC
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.open_guard import anybody_may, yes
from tests.support.turns import Turns
from tests.support.unfinished import Budget

_QUEUES: Final = 8
_ROUNDS: Final = 12
_UNCOUNTED: Final = 2  # rounds, until every header is in its table
_WAIT_MS: Final = 20_100
_HOST: Final = pack_host("127.0.0.1", 10911)
_MAX_BYTES: Final = 1 << 20


class _Wire:
    """The transport of a client: what it writes is kept until it is wanted."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written


class _Connected:
    """One client and its connection at the broker."""

    def __init__(self, number: int, heads: CallHeads, turns: Turns, flush: Callable[[_Connected], None]) -> None:
        self.client = IdleClient(number, heartbeats=False)
        self.wire: Any = _Wire()
        peer = Peer("127.0.0.1:1", _HOST, self)
        self.grpc = GrpcConnection(
            heads,
            GrpcLimits(_MAX_BYTES, _MAX_BYTES),
            Intake(Budget(_MAX_BYTES)),
            peer=peer,
            wants_flush=lambda _: flush(self),
            now_ms=turns.monotonic_ms(),
        )
        self.client.connection_made(self.wire)


class Bench:
    """A broker that so many clients are connected to; `in_us` and `out_us` are what one receive took."""

    def __init__(self, clients: int, groups: int) -> None:
        self.turns = turns = Turns()
        self._dirty: list[_Connected] = []
        methods = _methods(turns, groups)
        table = {
            SERVICE_PATH + name: Method(name, KINDS.get(name, Kind.UNARY), handler)
            for name, handler in methods.handlers.items()
        }
        heads = CallHeads(table, _MAX_BYTES, native_block_readers(load()))
        of_a_group = clients // groups
        self._clients = [
            _Connected(number % groups * 100 + number // groups % of_a_group, heads, turns, self._dirty.append)
            for number in range(clients)
        ]
        for each in self._clients:
            self._take(each)
            self._flush()
        tuning.settle()  # as in a broker

    def round(self) -> tuple[float, float]:
        """Each client's receive is taken in, in a turn of its own, then all of them end. Microseconds of one: in, out."""
        read = [each.wire.take() for each in self._clients]
        began_s = time.process_time()
        for each, data in zip(self._clients, read, strict=True):
            each.grpc.receive(data, self.turns.monotonic_ms(), _execute)
            self.turns.run(0.5)
        in_s = time.process_time() - began_s
        began_s = time.process_time()
        self.turns.run(_WAIT_MS)
        out_s = time.process_time() - began_s
        if len(self._dirty) != len(self._clients):
            raise RuntimeError(f"{len(self._dirty)} of {len(self._clients)} receives were answered")
        self._flush()
        return in_s * 1e6 / len(self._clients), out_s * 1e6 / len(self._clients)

    def _take(self, client: _Connected) -> None:
        client.grpc.receive(client.wire.take(), self.turns.monotonic_ms(), _execute)
        self.turns.run()

    def _flush(self) -> None:
        dirty = self._dirty[:]
        self._dirty.clear()
        for each in dirty:
            output = each.grpc.http2.outgoing.take()
            each.grpc.flushed()
            each.client.data_received(output)


def _execute(method: Method, calls: Any) -> None:
    run(method.handler, calls)


def _methods(turns: Turns, groups: int) -> Methods:
    broker = AloneBroker(MemoryDisk(), turns, StoreSettings(segment_size_bytes=1 << 24, index_enabled=False), _HOST)
    broker.replica.become(Role.MASTER)
    core = broker.core
    core.metadata.put_topic(TopicConfig(TOPIC, _QUEUES, _QUEUES), lambda _: None)
    for group in range(groups):
        core.metadata.put_group(GroupConfig(f"idle-{group}"), lambda _: None)
    clients = ClientRegistry(turns.monotonic_ms, turns.wall_ms, yes)
    nowhere: Any = None  # nobody asks for routes
    services = Services(
        core.sender,
        core.pop,
        core.metadata,
        clients,
        nowhere,
        core.transactions,
        core.timed,
        core.store,
        core.progress,
        core.counters,
        "broker-a",
        lambda _call: anybody_may,
    )
    return build_methods(services, scheduler=turns, monotonic_ms=turns.monotonic_ms, wall_ms=turns.wall_ms)


def measure(clients: int, groups: int) -> str:
    """Medians of the rounds, and the least, which say most where a machine is busy."""
    bench = Bench(clients, groups)
    rounds = [bench.round() for _ in range(_ROUNDS)][_UNCOUNTED:]
    taken_us, ended_us = (sorted(each) for each in zip(*rounds, strict=True))
    return (
        f"{statistics.median(taken_us):.1f} us of CPU to be taken in (at least {taken_us[0]:.1f}), "
        f"{statistics.median(ended_us):.1f} us to end ({ended_us[0]:.1f})"
    )


async def _main(options: argparse.Namespace) -> None:
    if options.profile:
        bench = Bench(options.clients, options.groups)
        profile = cProfile.Profile()
        for number in range(_ROUNDS):
            if number == _UNCOUNTED:
                profile.enable()
            bench.round()
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    print(f"a receive that waits: {measure(options.clients, options.groups)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    logging.disable(logging.INFO)
    asyncio.run(partial(_main, parser.parse_args())())


if __name__ == "__main__":
    main()
