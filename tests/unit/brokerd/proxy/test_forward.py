"""A replica's port: calls go to the master, wait for one, and survive the loss of one where that does no harm."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.frames import ErrorCode
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from remoting import codes
from remoting.transport.client import connect
from tests.support.memory_log import draft
from tests.unit.brokerd.proxy.rawclient import RawClient
from tests.unit.brokerd.proxy.replica_group import Node, client_of, group_of, receive, send
from tests.unit.brokerd.proxy.test_methods import acking, changing, resource, sending
from tests.unit.brokerd.proxy.test_receive_message import receiving
from tests.unit.brokerd.proxy.waiting import until


async def test_a_replica_does_what_the_master_does() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        assert await send(client, b"body") == Code.OK
        code, (message,) = await receive(client)
        assert (code, message.body) == (Code.OK, b"body")
        handle = message.system_properties.receipt_handle
        changed = await client.call(
            "ChangeInvisibleDuration", changing(handle, 30), service.ChangeInvisibleDurationResponse
        )
        assert changed.status.code == Code.OK
        acked = await client.call("AckMessage", acking(changed.receipt_handle), service.AckMessageResponse)
        assert acked.status.code == Code.OK
        route = await client.call(
            "QueryRoute", service.QueryRouteRequest(topic=resource("Normal")), service.QueryRouteResponse
        )
        assert len(route.message_queues[0].broker.endpoints.addresses) == 2
        assert (len(master.broker.log), len(replica.broker.log)) == (1, 0)
        await client.close()


def pulling(offset: int, wait_ms: int = 0, batch_size: int = 32):
    request = service.PullMessageRequest(group=resource("G"), offset=offset, batch_size=batch_size)
    request.message_queue.topic.name = "Normal"
    request.long_polling_timeout.FromMilliseconds(wait_ms)
    return request


def waiting_pulls(node: Node) -> int:
    return node.proxy._methods.pull.waiting_count


async def pulled(client: RawClient, stream_id: int):
    """(code, bodies, next offset) of a pull that is answered."""
    found, fields = await client.answer(stream_id, service.PullMessageResponse)
    assert fields["grpc-status"] == "0"
    return found[0].status.code, [one.message.body for one in found[1:-1]], found[-1].next_offset


async def test_a_replica_lets_clients_pull_from_the_master() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        master.broker.reads.listeners.append(master.proxy.arrived)
        client = await client_of(replica)
        waiting = client.start("PullMessage", pulling(0, wait_ms=60_000))
        await until("the call waits at the master", lambda: waiting_pulls(master))
        master.broker.reads.append_messages([draft("Normal", b"first")])
        assert await pulled(client, waiting) == (Code.OK, [b"first"], 1)
        master.broker.reads.append_messages([draft("Normal", b"%d" % number) for number in range(12)])
        found = await pulled(client, client.start("PullMessage", pulling(1, batch_size=5)))
        assert found == (Code.OK, [b"0", b"1", b"2", b"3", b"4"], 6)
        assert await pulled(client, client.start("PullMessage", pulling(99))) == (Code.ILLEGAL_OFFSET, [], 13)
        queue = definition.MessageQueue(topic=resource("Normal"))
        update = service.UpdateOffsetRequest(group=resource("G"), message_queue=queue, offset=13)
        assert (await client.call("UpdateOffset", update, service.UpdateOffsetResponse)).status.code == Code.OK
        asked = service.GetOffsetRequest(group=resource("G"), message_queue=queue)
        assert (await client.call("GetOffset", asked, service.GetOffsetResponse)).offset == 13
        end = service.QueryOffsetRequest(message_queue=queue, query_offset_policy=1)
        assert (await client.call("QueryOffset", end, service.QueryOffsetResponse)).offset == 13
        assert replica.broker.offsets == {}
        await client.close()


async def test_a_pull_that_waits_is_asked_of_the_next_master() -> None:
    async with group_of() as group:
        first, second = group.nodes
        second.broker.reads.listeners.append(second.proxy.arrived)
        client = await client_of(second)
        waiting = client.start("PullMessage", pulling(0, wait_ms=60_000))
        await until("the call waits at the master", lambda: waiting_pulls(first))
        group.master = second
        first.cut()
        await until("the call waits at the next one", lambda: waiting_pulls(second))
        second.broker.reads.append_messages([draft("Normal", b"x")])
        assert await pulled(client, waiting) == (Code.OK, [b"x"], 1)
        await client.close()


async def test_a_waiting_call_is_woken_and_a_cancelled_one_is_forgotten_by_the_master() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        waiting = client.start("ReceiveMessage", receiving())
        await until("a parked call", lambda: master.broker.parked)
        client.writer.write(frames.encode_rst_stream(waiting, ErrorCode.CANCEL))
        await until("no parked call", lambda: not master.broker.parked)
        waiting = client.start("ReceiveMessage", receiving())
        await until("a parked call", lambda: master.broker.parked)
        other = await client_of(master)
        assert await send(other, b"woke you") == Code.OK
        code, (message,) = await receive(client, waiting)
        assert (code, message.body) == (Code.OK, b"woke you")
        await client.close()
        await other.close()


async def test_many_calls_at_once() -> None:
    async with group_of() as group:
        client = await client_of(group.nodes[1])
        streams = [client.start("SendMessage", sending(b"%d" % number)) for number in range(200)]
        answered = set()
        async with asyncio.timeout(60):
            while len(answered) < len(streams):
                frame = await client.frame()
                if frame.kind == frames.HEADERS and frame.flags & frames.END_STREAM:
                    answered.add(frame.stream_id)
        assert len(group.nodes[0].broker.log) == 200
        assert len(group.nodes[0].broker.sends) < 100  # they travel, and are appended, in batches
        await client.close()


async def test_an_answer_longer_than_a_frame_comes_in_parts() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        direct = await client_of(master)
        for number in range(20):
            assert await send(direct, bytes([number]) * (1 << 20)) == Code.OK
        client = await RawClient.connect(replica.proxy.endpoint.port, window=1 << 30)
        client.writer.write(frames.encode_window_update(0, 1 << 30))
        code, messages = await receive(client, client.start("ReceiveMessage", receiving(batch_size=32)))
        assert code == Code.OK
        assert sorted(message.body[0] for message in messages) == list(range(20))
        assert all(len(message.body) == 1 << 20 for message in messages)
        await client.close()
        await direct.close()


# ---- no master, or another one


async def test_calls_wait_until_there_is_a_master() -> None:
    async with group_of() as group:
        group.master = None
        client = await client_of(group.nodes[1])
        stream_id = client.start("SendMessage", sending(b"patient"))
        await until("a held call", lambda: len(group.nodes[1].proxy._forwarder._held) == 1)
        group.master = group.nodes[0]
        ((response,), _) = await client.answer(stream_id, service.SendMessageResponse)
        assert response.status.code == Code.OK
        assert len(group.nodes[0].broker.log) == 1
        await client.close()


async def test_a_replica_that_becomes_master_serves_what_it_held() -> None:
    async with group_of() as group:
        group.master = None
        replica = group.nodes[1]
        client = await client_of(replica)
        stream_id = client.start("SendMessage", sending(b"patient"))
        await until("a held call", lambda: len(replica.proxy._forwarder._held) == 1)
        group.master = replica
        ((response,), _) = await client.answer(stream_id, service.SendMessageResponse)
        assert response.status.code == Code.OK
        assert len(replica.broker.log) == 1
        await client.close()


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("successor", [0, 1])
async def test_calls_wait_while_a_master_hands_over(asked, successor) -> None:
    """Asked at the master or at a replica; then the replica is master, or the master goes on."""
    async with group_of() as group:
        master = group.nodes[0]
        client = await client_of(group.nodes[asked])
        assert await send(client) == Code.OK
        master.is_handing_over = True
        stream_id = client.start("SendMessage", sending(b"patient"))
        held = group.nodes[asked].proxy._forwarder
        await until("a held call", lambda: held._held)
        assert len(master.broker.log) == 1
        group.master = group.nodes[successor]
        master.is_handing_over = False
        ((response,), _) = await client.answer(stream_id, service.SendMessageResponse)
        assert response.status.code == Code.OK
        assert len(group.nodes[successor].broker.log) == (1 if successor else 2)
        await client.close()


async def test_nobody_waits_for_a_master_beyond_the_bound_or_the_deadline() -> None:
    async with group_of(hold_ms=150) as group:
        group.master = None
        client = await client_of(group.nodes[1])
        assert await send(client) == Code.HA_NOT_AVAILABLE
        code, _ = await receive(client)
        assert code == Code.HA_NOT_AVAILABLE
        change = await client.call(
            "ChangeInvisibleDuration", changing("old handle", 5), service.ChangeInvisibleDurationResponse
        )
        assert (change.status.code, change.receipt_handle) == (Code.HA_NOT_AVAILABLE, "old handle")
        await client.close()
    async with group_of(hold_ms=60_000) as group:
        group.master = None
        client = await client_of(group.nodes[1])
        assert await send(client, **{"grpc-timeout": "300m"}) == Code.HA_NOT_AVAILABLE
        await client.close()


async def test_without_a_master_the_route_is_still_told() -> None:
    async with group_of() as group:
        group.master = None
        client = await client_of(group.nodes[1])
        request = service.QueryRouteRequest(topic=resource("Normal"))
        route = await client.call("QueryRoute", request, service.QueryRouteResponse)
        assert route.status.code == Code.OK
        await client.close()


async def test_what_is_held_is_bounded() -> None:
    async with group_of(max_held=3) as group:
        group.master = None
        client = await client_of(group.nodes[1])
        for _ in range(3):
            client.start("SendMessage", sending(b"held"))
        assert await send(client) == Code.TOO_MANY_REQUESTS
        await client.close()
    async with group_of(max_held_bytes=1000) as group:
        group.master = None
        client = await client_of(group.nodes[1])
        assert await send(client, bytes(1000)) == Code.TOO_MANY_REQUESTS
        await client.close()


async def test_a_held_call_whose_client_left_is_not_carried_out() -> None:
    async with group_of() as group:
        group.master = None
        replica = group.nodes[1]
        client = await client_of(replica)
        gone = client.start("SendMessage", sending(b"gone"))
        client.start("SendMessage", sending(b"stays"))
        await until("two held calls", lambda: len(replica.proxy._forwarder._held) == 2)
        client.writer.write(frames.encode_rst_stream(gone, ErrorCode.CANCEL))
        await until("one held call", lambda: len(replica.proxy._forwarder._held) == 1)
        group.master = group.nodes[0]
        await until("the other call", lambda: len(group.nodes[0].broker.log) == 1)
        assert b"stays" in group.nodes[0].broker.log[0].record
        await client.close()


async def test_a_master_lost_while_it_worked_is_an_unknown_outcome_for_a_send() -> None:
    async with group_of(3) as group:
        first, second, replica = group.nodes
        first.broker.send = lambda drafts, done: None  # never answers
        client = await client_of(replica)
        stream_id = client.start("SendMessage", sending(b"x"))
        await until("a forwarded call", lambda: first.proxy._forwarded._calls and first.server.connections)
        group.master = second
        first.cut()
        ((response,), _) = await client.answer(stream_id, service.SendMessageResponse)
        assert response.status.code == Code.HA_NOT_AVAILABLE
        assert "unknown" in response.status.message
        assert len(response.entries) == 1
        assert second.broker.log == []  # not sent twice
        assert await send(client) == Code.OK
        await client.close()


async def test_a_receive_goes_on_at_the_next_master() -> None:
    async with group_of(3) as group:
        first, second, replica = group.nodes
        client = await client_of(replica)
        stream_id = client.start("ReceiveMessage", receiving())
        await until("a parked call", lambda: first.broker.parked)
        group.master = None
        first.cut()
        await until("the old master to forget it", lambda: not first.broker.parked)
        group.master = second
        await until("a parked call at the new one", lambda: second.broker.parked)
        other = await client_of(second)
        assert await send(other, b"after the switch") == Code.OK
        _, (message,) = await receive(client, stream_id)
        assert message.body == b"after the switch"
        await client.close()
        await other.close()


async def test_what_a_frozen_master_is_asked_is_bounded() -> None:
    async with group_of(max_in_flight_bytes=5000) as group:
        master, replica = group.nodes
        client = await client_of(replica)
        stuck = []
        master.broker.send = lambda drafts, done: stuck.append((drafts, done))  # frozen: takes, and never answers
        first = client.start("SendMessage", sending(b"x" * 3000))
        await until("the first call", lambda: stuck)
        for _ in range(3):
            assert await send(client, b"y" * 3000) == Code.TOO_MANY_REQUESTS
        small = client.start("SendMessage", sending(b"z" * 1000))
        await until("a call that fits", lambda: len(stuck) == 2)
        del master.broker.send
        for drafts, done in stuck:
            master.broker.send(drafts, done)
        for stream_id in (first, small):
            ((response,), _) = await client.answer(stream_id, service.SendMessageResponse)
            assert response.status.code == Code.OK
        assert await send(client, b"x" * 3000) == Code.OK, "what was answered counts no more"
        await client.close()


async def test_a_master_that_is_replaced_while_it_is_frozen_is_not_waited_for() -> None:
    async with group_of(3) as group:
        first, second, replica = group.nodes
        client = await client_of(replica)
        waiting = client.start("ReceiveMessage", receiving())
        await until("a parked call", lambda: first.broker.parked)
        taken = []
        first.broker.send = lambda drafts, done: taken.append(drafts)  # frozen: takes, and never answers
        stuck = client.start("SendMessage", sending(b"x"))
        await until("a second call", lambda: taken)
        group.master = second
        ((response,), _) = await client.answer(stuck, service.SendMessageResponse)
        assert response.status.code == Code.HA_NOT_AVAILABLE
        await until("a parked call at the new one", lambda: second.broker.parked)
        assert await send(client, b"to the new one") == Code.OK
        _, (message,) = await receive(client, waiting)
        assert message.body == b"to the new one"
        # the old one wakes up and takes a message for a call that it does not serve any more
        late = await client_of(first)
        del first.broker.send
        group.master = first
        assert await send(late, b"late") == Code.OK
        await until("the message to be given back", lambda: is_given_back(first))
        await late.close()
        await client.close()


async def test_messages_that_cross_a_cancelled_call_are_given_back() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        held = []
        master.broker.pop = lambda request, done: held.append((request, done))
        client = await client_of(replica)
        stream_id = client.start("ReceiveMessage", receiving())
        await until("a pop", lambda: held)
        direct = await client_of(master)
        assert await send(direct, b"x") == Code.OK
        # the answer is on its way when the client leaves: the replica's word does not reach the master in time
        forwarder = replica.proxy._forwarder
        connection = forwarder._connection
        connection.notify, notify = lambda *args: True, connection.notify
        client.writer.write(frames.encode_rst_stream(stream_id, ErrorCode.CANCEL))
        await until("the stream to be gone", lambda: not stream_is_live(replica, stream_id))
        connection.notify = notify
        request, done = held[0]
        done(master.broker.take(request))
        await until("the message to be given back", lambda: is_given_back(master))
        await client.close()
        await direct.close()


async def test_of_a_client_that_is_gone_nothing_is_kept_when_its_messages_are_given_back() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        held = []
        master.broker.pop = lambda request, done: held.append((request, done))
        client, direct = await client_of(replica), await client_of(master)
        client.start("ReceiveMessage", receiving())
        await until("a pop", lambda: held)
        assert await send(direct, b"x") == Code.OK
        forwarder = replica.proxy._forwarder
        connection = forwarder._connection
        connection.notify, notify = lambda *args: True, connection.notify
        await client.close()
        await until("the client to be gone", lambda: not replica.proxy.endpoint.connections)
        connection.notify = notify
        request, done = held[0]
        done(master.broker.take(request))
        await until("the message to be given back", lambda: is_given_back(master))
        assert len(forwarder._clients) == 0
        await direct.close()


def is_given_back(node: Node) -> bool:
    """Whether somebody took the first message, and it is visible again in a second."""
    taken = node.broker.log[0].taken.get("G")
    return taken is not None and " 1000 " in taken.handle


def stream_is_live(node: Node, stream_id: int) -> bool:
    return any(stream_id in protocol._grpc.http2.streams for protocol in node.proxy.endpoint.connections)


async def test_a_broker_that_is_not_master_any_more_says_so_and_the_call_waits_on(monkeypatch) -> None:
    async with group_of(3) as group:
        first, second, replica = group.nodes
        client = await client_of(replica)
        assert await send(client) == Code.OK
        # the replica has not heard yet; the old master has
        replica.proxy._forwarder._master_address = lambda: first.address
        group.master = second
        held = []
        hold = replica.proxy._forwarder._hold
        monkeypatch.setattr(replica.proxy._forwarder, "_hold", lambda *call: (held.append(call), hold(*call)))
        stream_id = client.start("SendMessage", sending(b"late"))
        await until("a held call", lambda: held)  # it is tried again every 20 ms, and held no more meanwhile
        replica.proxy._forwarder._master_address = lambda: second.address
        ((response,), _) = await client.answer(stream_id, service.SendMessageResponse)
        assert response.status.code == Code.OK
        assert (len(first.broker.log), len(second.broker.log)) == (1, 1)
        await client.close()


async def test_a_stopping_replica_refuses_what_it_holds() -> None:
    async with group_of() as group:
        group.master = None
        replica = group.nodes[1]
        client = await client_of(replica)
        stream_id = client.start("SendMessage", sending(b"x"))
        await until("a held call", lambda: replica.proxy._forwarder._held)
        closing = asyncio.ensure_future(replica.proxy.close())
        ((response,), _) = await client.answer(stream_id, service.SendMessageResponse)
        assert response.status.code == Code.HA_NOT_AVAILABLE
        await client.close()
        await closing


async def test_a_request_too_large_to_forward_is_refused() -> None:
    async with group_of() as group:
        client = await client_of(group.nodes[1])
        request = sending(*[bytes(4 << 20)] * 4)
        response = await client.call("SendMessage", request, service.SendMessageResponse)
        assert response.status.code == Code.BAD_REQUEST
        assert len(response.entries) == 4
        await client.close()


# ---- the internal request itself


@pytest.mark.parametrize(
    "ext",
    [
        {},
        {"method": "Heartbeat"},
        {"method": "Heartbeat", "callId": "x", "client": "1"},
        {"method": "Nothing", "callId": "1", "client": "1"},
        {"method": "$more", "callId": "77", "client": "1"},
    ],
)
async def test_broken_internal_requests_are_answered_with_an_error(ext) -> None:
    async with group_of() as group:
        connection = await connect(group.nodes[0].address)
        response = await connection.call(codes.PROXY_CALL, ext, b"")
        assert response.code != codes.SUCCESS
        connection.close()
        await until("no connection", lambda: not group.nodes[0].server.connections)
