"""What a master knows of clients that speak to a replica, and how it speaks to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from brokerd.members.streams import Told
from brokerd.proxy.grpc import PREFIX
from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.frames import ErrorCode
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from brokerd.store.draft import Draft, encode_draft
from brokerd.transactions.ids import TransactionId
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from tests.unit.brokerd.proxy.fakes import STORE_HOST
from tests.unit.brokerd.proxy.rawclient import RawClient
from tests.unit.brokerd.proxy.replica_group import client_of, group_of, send
from tests.unit.brokerd.proxy.test_methods import producer, resource, settings_of
from tests.unit.brokerd.proxy.waiting import until


async def test_the_master_knows_who_the_client_is() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        telemetry = client.start("Telemetry", settings_of(producer("Normal")), end=False)
        await until("the master to hear of the settings", lambda: "raw-client" in master.broker.live)
        info, _ = master.broker.live["raw-client"]
        assert info.producer_topics == {"Normal"}
        assert info.address == f"127.0.0.1:{client.writer.get_extra_info('sockname')[1]}"
        assert info.language == "PYTHON"
        assert "raw-client" in replica.broker.live  # its own connection, its own registry
        request = service.HeartbeatRequest(client_type=definition.ClientType.Value("PRODUCER"))
        assert (await client.call("Heartbeat", request, service.HeartbeatResponse)).status.code == Code.OK
        _, connection = master.broker.live["raw-client"]
        client.writer.write(frames.encode_rst_stream(telemetry, ErrorCode.CANCEL))
        await client.close()
        await until("the master to hear that it is gone", lambda: connection in master.broker.closed)


async def commands(client: RawClient, stream_id: int) -> AsyncIterator[Any]:
    """What comes on a telemetry stream."""
    received = bytearray()
    while True:
        frame = await client.frame()
        if frame.kind == frames.DATA and frame.stream_id == stream_id:
            received += frame.payload
            while len(received) >= PREFIX.size and len(received) >= PREFIX.size + PREFIX.unpack_from(received)[1]:
                end = PREFIX.size + PREFIX.unpack_from(received)[1]
                yield service.TelemetryCommand.FromString(bytes(received[PREFIX.size : end]))
                del received[:end]


def half_message():
    properties = encode_properties({"UNIQ_KEY": "m-1", "TRAN_MSG": "true", "PGROUP": "Normal"})
    draft = Draft("Normal", 0, b"half", properties, 0, STORE_HOST)
    return decode_record(encode_draft(draft, 0, 0, 0, STORE_HOST))


async def test_the_master_speaks_to_a_client_of_a_replica() -> None:
    async with group_of() as group, asyncio.timeout(60):
        master, replica = group.nodes
        client = await client_of(replica)
        telemetry = client.start("Telemetry", settings_of(producer("Normal")), end=False)
        said = commands(client, telemetry)
        assert (await anext(said)).HasField("settings")
        await until("the master to hear of the stream", lambda: "raw-client" in master.broker.streams)
        stream = master.broker.streams["raw-client"]
        assert stream.recover_orphan(half_message(), "T1-x")
        command = (await anext(said)).recover_orphaned_transaction_command
        assert (command.transaction_id, command.message.body) == ("T1-x", b"half")
        told: list[object] = []
        stream.print_threads(60_000, told.append)
        nonce = (await anext(said)).print_thread_stack_trace_command.nonce
        trace = service.ThreadStackTrace(nonce=nonce, thread_stack_trace="main")
        client.send(telemetry, service.TelemetryCommand(thread_stack_trace=trace), end=False)
        await until("the answer to reach the master", lambda: told)
        assert told == [Told(0, "main")]
        assert stream.recover_orphan(half_message(), "T1-y"), "an answer is no new stream"
        assert (await anext(said)).recover_orphaned_transaction_command.transaction_id == "T1-y"
        await client.close()
        await until(
            "the stream to be gone", lambda: not stream.is_open or not stream.recover_orphan(half_message(), "z")
        )


async def test_a_stream_that_its_client_closed_is_not_open_for_long() -> None:
    async with group_of() as group, asyncio.timeout(60):
        master, replica = group.nodes
        client = await client_of(replica)
        telemetry = client.start("Telemetry", settings_of(producer("Normal")), end=False)
        await until("the master to hear of the stream", lambda: "raw-client" in master.broker.streams)
        client.writer.write(frames.encode_rst_stream(telemetry, ErrorCode.CANCEL))
        stream = master.broker.streams["raw-client"]
        await until("the replica to say so", lambda: not stream.recover_orphan(half_message(), "T1-x"))
        again = client.start("Telemetry", settings_of(producer("Normal")), end=False)
        await until("another stream", lambda: master.broker.streams["raw-client"] is not stream)
        assert master.broker.streams["raw-client"].recover_orphan(half_message(), "T1-y")
        said = commands(client, again)
        assert (await anext(said)).HasField("settings")
        assert (await anext(said)).recover_orphaned_transaction_command.transaction_id == "T1-y"
        await client.close()


async def test_a_new_master_speaks_on_the_same_stream() -> None:
    async with group_of(3) as group, asyncio.timeout(60):
        first, second, replica = group.nodes
        client = await client_of(replica)
        said = commands(client, client.start("Telemetry", settings_of(producer("Normal")), end=False))
        assert (await anext(said)).HasField("settings")
        await until("the first master to know", lambda: "raw-client" in first.broker.streams)
        group.master = second
        other = await client_of(replica)
        assert await send(other) == Code.OK
        await other.close()
        await until("the second master to know", lambda: "raw-client" in second.broker.streams)
        assert second.broker.streams["raw-client"].recover_orphan(half_message(), "T1-x")
        assert (await anext(said)).recover_orphaned_transaction_command.transaction_id == "T1-x"
        await client.close()


async def test_settings_that_are_told_again_and_again_are_not_kept_by_the_master() -> None:
    async with group_of() as group, asyncio.timeout(60):
        master, replica = group.nodes
        client = await client_of(replica)
        telemetry = client.start("Telemetry", settings_of(producer("Normal")), end=False)
        for _ in range(20):
            client.send(telemetry, settings_of(producer("Normal")), end=False)
        await until("the master to hear of it", lambda: "raw-client" in master.broker.streams)
        other = await client_of(replica)
        assert await send(other) == Code.OK
        await other.close()
        [connection] = master.server.connections
        forwarded = master.proxy._forwarded
        assert (forwarded._calls.get(connection, {}), len(forwarded._streams[connection][1])) == ({}, 1)
        await client.close()


async def test_a_client_that_ended_is_announced_to_no_later_master() -> None:
    async with group_of(3) as group:
        first, second, replica = group.nodes
        client = await client_of(replica)
        client.start("Telemetry", settings_of(producer("Normal")), end=False)
        await until("the first master to know", lambda: "raw-client" in first.broker.live)
        ending = service.NotifyClientTerminationRequest()
        response = await client.call("NotifyClientTermination", ending, service.NotifyClientTerminationResponse)
        assert response.status.code == Code.OK
        assert "raw-client" not in first.broker.live
        group.master = second
        assert await send(client) == Code.OK
        assert "raw-client" not in second.broker.live
        await client.close()


async def test_a_transaction_is_ended_through_a_replica() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        text = str(TransactionId(4711, 3, "0123456789abcdef" * 2, "broker-a"))
        request = service.EndTransactionRequest(topic=resource("Normal"), message_id="m-1", transaction_id=text)
        assert (await client.call("EndTransaction", request, service.EndTransactionResponse)).status.code == Code.OK
        assert ([end.physical_offset for end in master.broker.ends], replica.broker.ends) == ([4711], [])
        await client.close()


async def test_a_broken_connection_between_brokers_does_not_make_a_client_gone_at_once(monkeypatch) -> None:
    monkeypatch.setattr("brokerd.proxy.forwarded._RETURN_S", 0.2)
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        request = service.HeartbeatRequest(client_type=definition.ClientType.Value("PRODUCER"))
        assert (await client.call("Heartbeat", request, service.HeartbeatResponse)).status.code == Code.OK
        _, before = master.broker.live["raw-client"]
        master.cut()
        await until("the connection to be gone", lambda: not master.server.connections)
        assert before not in master.broker.closed
        assert (await client.call("Heartbeat", request, service.HeartbeatResponse)).status.code == Code.OK
        _, after = master.broker.live["raw-client"]
        assert after is not before  # it is there again before its old connection counts as gone
        await until("the old connection to count as gone", lambda: before in master.broker.closed)
        assert after not in master.broker.closed
        await client.close()


async def test_masters_of_before_hear_of_clients_that_are_gone() -> None:
    """They may lead again, on the same connection."""
    async with group_of(3) as group:
        first, second, replica = group.nodes
        client = await client_of(replica)
        request = service.HeartbeatRequest(client_type=definition.ClientType.Value("PRODUCER"))
        known = []
        for master in (first, second):
            group.master = master
            assert (await client.call("Heartbeat", request, service.HeartbeatResponse)).status.code == Code.OK
            known.append(master.broker.live["raw-client"][1])
        await client.close()
        await until("the second one to hear of it", lambda: known[1] in second.broker.closed)
        await until("the first one to hear of it", lambda: known[0] in first.broker.closed)


async def test_every_new_master_hears_of_the_clients_that_are_there() -> None:
    async with group_of(3) as group:
        first, second, replica = group.nodes
        client = await client_of(replica)
        client.start("Telemetry", settings_of(producer("Normal")), end=False)
        await until("the first master to know", lambda: "raw-client" in first.broker.live)
        group.master = second
        assert await send(client) == Code.OK
        await until("the second master to know", lambda: "raw-client" in second.broker.live)
        assert second.broker.live["raw-client"][0].producer_topics == {"Normal"}
        await client.close()


async def test_a_master_that_steps_down_tells_its_successor_of_its_clients() -> None:
    async with group_of(2) as group:
        first, second = group.nodes
        client = await client_of(first)
        client.start("Telemetry", settings_of(producer("Normal")), end=False)
        await until("the first master to know", lambda: "raw-client" in first.broker.live)
        group.master = second
        assert await send(client) == Code.OK
        await until("the second master to know", lambda: "raw-client" in second.broker.live)
        await client.close()
