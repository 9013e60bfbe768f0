"""The channel over real sockets: strangers, other secrets, and small stand-ins for slaves and masters of the original."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from brokerd.replication.roles.effects import Role
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire import rocketmq_layouts
from tests.unit.brokerd.replication.test_replica import DEADLINE_S, Broker, Cluster, cluster, until

HERE = "127.0.0.1"


@asynccontextmanager
async def dialled(broker: Broker) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(HERE, broker.ha_port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield reader, writer
    finally:
        writer.close()


async def copy(
    read: Callable[[], Awaitable[tuple[int, bytes]]], ack: Callable[[int], None], log: bytearray, end: int
) -> None:
    """Be a slave: take what comes at the end of the log, ack it, until there is enough."""
    while len(log) < end:
        offset, body = await read()
        if body:
            assert offset == len(log)
            log += body
            ack(len(log))


async def test_a_slave_in_the_current_layout_is_greeted_served_and_counted() -> None:
    async with cluster(size=1, plain_peers=HERE) as group:
        await group.has_master()
        await group.acknowledge(50)
        group.controller.check_codes[7] = "of the slave"
        group.controller.hold_alters = True
        async with dialled(group.master) as (reader, writer):
            writer.write(struct.pack(">ihhq", 1, 0, 0, 7))
            state, size, end, epoch = struct.unpack(">iiqi", await reader.readexactly(20))
            entries = list(struct.iter_unpack(">iq", await reader.readexactly(size)))
            assert (state, end, epoch) == (1, group.master.log.end_offset, group.master.replica.master_epoch)
            assert entries[-1][0] == epoch
            log = bytearray()
            writer.write(rocketmq_layouts.encode_ack(0))

            async def read() -> tuple[int, bytes]:
                state, size, offset, *_ = struct.unpack(">iiqiqq", await reader.readexactly(36))
                assert state == 2
                return offset, await reader.readexactly(size)

            await copy(read, lambda offset: writer.write(rocketmq_layouts.encode_ack(offset)), log, end)
            assert log == group.master.log.data
            (peer,) = group.master.state().leading.replicas
            assert (peer.state.broker_id, peer.state.layout) == (7, "current")
            await until(lambda: 7 in group.master.state().leading.required_set, "its acks count")


async def test_a_classic_slave_copies_and_is_a_guest() -> None:
    async with cluster(size=1, plain_peers=HERE, classic_peers=True) as group:
        await group.has_master()
        await group.acknowledge(50)
        async with dialled(group.master) as (reader, writer):
            log = bytearray()
            writer.write(rocketmq_layouts.encode_classic_ack(0))

            async def read() -> tuple[int, bytes]:
                offset, size = struct.unpack(">qi", await reader.readexactly(12))
                return offset, await reader.readexactly(size)

            await copy(
                read,
                lambda offset: writer.write(rocketmq_layouts.encode_classic_ack(offset)),
                log,
                group.master.log.end_offset,
            )
            assert log == group.master.log.data
            while (await read())[1]:
                pass
            (peer,) = group.master.state().leading.replicas
            assert (peer.state.broker_id, peer.state.layout, peer.state.learner) == (-1, "classic", True)
            assert group.controller.members == [group.master.replica.broker_id]


async def test_a_broker_copies_a_classic_master_and_asks_no_controller() -> None:
    log = bytearray(b"".join(bytes((9,)) + b"message %d" % index for index in range(10)))
    acks: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            acks.append(*struct.unpack(">q", await reader.readexactly(8)))
            sent = acks[0]
            while True:
                writer.write(struct.pack(">qi", sent, len(log[sent:][:33])) + log[sent:][:33])
                sent += len(log[sent:][:33])
                acks.append(*struct.unpack(">q", await reader.readexactly(8)))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, HERE, 0)
    port = server.sockets[0].getsockname()[1]
    settings = ReplicationSettings(classic_master=f"{HERE}:{port}", plain_peers=HERE, heartbeat_ms=50)
    broker = Broker([f"{HERE}:1"], settings)
    try:
        await broker.start()
        await until(lambda: broker.log.data == log, "the copy")
        log += bytes((5,)) + b"later"
        await until(lambda: broker.log.data == log, "what came later")
        await until(lambda: acks[-1] == len(log), "its ack")
        assert acks[0] == 0
        state = broker.state()
        assert (state.role, state.following.state.layout) == (Role.REPLICA, "classic")
        assert state.confirm_offset == len(log)
        assert broker.replica._link._connections == {}
        assert not broker.is_master
    finally:
        await broker.stop()
        server.close()
        await server.wait_closed()


async def with_other_secrets(group: Cluster, secrets: list[bytes]) -> Broker:
    stranger = Broker([group.controller.address], group.brokers[0].settings)
    stranger.secrets = secrets
    group.brokers.append(stranger)
    await stranger.start()
    return stranger


@pytest.mark.parametrize("secrets", [[b"of quite another cluster"], []])
async def test_a_broker_without_the_secret_stays_outside_and_both_say_so(secrets: list[bytes]) -> None:
    async with cluster(size=2) as group:
        await group.has_master()
        await group.all_in_sync()
        stranger = await with_other_secrets(group, secrets)
        await until(lambda: (told := stranger.state().following) and "secret" in told.last_error, "the reason")
        await group.acknowledge(5)
        assert stranger.replica.broker_id not in group.controller.members
        assert len(stranger.log.data) == 0
        if secrets:
            await until(lambda: group.master.state().refused_peers.get(HERE, 0) > 1, "its attempts are counted")


async def test_the_secret_is_changed_one_broker_after_the_other() -> None:
    old, new = b"known to this cluster only", b"known to this cluster next"
    async with cluster(size=3) as group:
        await group.has_master()
        await group.all_in_sync()
        for secrets in ([old, new], [new, old], [new]):
            for broker in group.brokers:
                await broker.stop()
                broker.secrets = secrets
                await broker.start()
                await group.has_master()
                await group.all_in_sync()
                await group.acknowledge(1)
        await group.equal_logs()
        assert all(broker.state().refused_peers == {} for broker in group.brokers)


async def test_the_log_leaves_no_faster_than_the_limit() -> None:
    async with cluster(size=1, max_transfer_bytes_per_s=100_000, transfer_batch_bytes=4096) as group:
        await group.has_master()
        master = group.master
        for _ in range(300):
            master.append(b"x" * 199)
        await until(lambda: len(master.statuses) == 300, "acknowledged alone")
        loop = asyncio.get_running_loop()
        started = loop.time()
        fresh = Broker([group.controller.address], master.settings)
        group.brokers.append(fresh)
        await fresh.start()
        await until(lambda: fresh.log.data == master.log.data, "the copy")
        seconds = loop.time() - started
        assert len(fresh.log.data) == 60_000
        assert seconds > (60_000 - 10_000) / 100_000 * 0.9, "the first tenth of a second goes at once"


async def test_a_broker_that_is_not_master_refuses_everybody() -> None:
    async with cluster(size=2, plain_peers=HERE, classic_peers=True) as group:
        await group.has_master()
        await group.all_in_sync()
        replica = next(broker for broker in group.brokers if not broker.is_master)
        for opening in (struct.pack(">ihhq", 1, 0, 0, 7), rocketmq_layouts.encode_classic_ack(0), b"LBHA"):
            async with dialled(replica) as (reader, writer):
                writer.write(opening)
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert replica.state().refused_peers == {}, "it is no offence to be early"


async def test_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "brokerd.replication")
    async with cluster(size=1) as group:
        await group.has_master()
        caplog.clear()
        for _ in range(50):
            async with dialled(group.master) as (reader, writer):
                writer.write(b"GET / HTTP/1.1")
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        await until(lambda: group.master.state().refused_peers == {HERE: 50}, "every refusal is counted")
        assert len([record for record in caplog.records if "replication connection" in record.message]) == 1
