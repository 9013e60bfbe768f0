"""Sends that a replica forwards together: they arrive as they left, each is answered for itself, and nothing broken is taken."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import orjson
import pytest

from brokerd.proxy import bundles, forward
from brokerd.proxy.bundles import BundledAnswer, Outcome, decode_answers, decode_calls, encode_answers, encode_calls
from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.frames import ErrorCode
from brokerd.proxy.protobuf import service
from brokerd.proxy.proxy_call import ProxyCall
from brokerd.proxy.status import Code
from remoting import codes
from remoting.errors import ProtocolError
from remoting.record.codec import decode_record
from remoting.transport.client import connect
from remoting.transport.connection import RemotingConnection
from tests.unit.brokerd.proxy.rawclient import RawClient
from tests.unit.brokerd.proxy.replica_group import Node, client_of, group_of, send
from tests.unit.brokerd.proxy.test_methods import sending
from tests.unit.brokerd.proxy.waiting import until


def call(number: int) -> tuple[ProxyCall, bytes]:
    return ProxyCall("SendMessage", number, 3000, "127.0.0.1:5", 9, {"x-mq-client-id": f"ü{number}"}), b"m" * number


def test_calls_and_answers_survive_and_broken_ones_are_refused() -> None:
    calls = [call(number) for number in range(bundles.MAX_CALLS)]
    assert decode_calls(encode_calls(calls)) == calls
    answers = [BundledAnswer(1 << 40, Outcome.ANSWERED, b"yes"), BundledAnswer(2, Outcome.GIVEN_BACK, b"")]
    assert decode_answers(encode_answers(answers)) == answers
    for cut in range(1, len(encode_calls(calls[:2]))):
        if cut != len(encode_calls(calls[:1])):
            with pytest.raises(ProtocolError):
                decode_calls(encode_calls(calls[:2])[:cut])
    for cut in range(1, len(encode_answers(answers[:1]))):
        with pytest.raises(ProtocolError):
            decode_answers(encode_answers(answers[:1])[:cut])
    with pytest.raises(ProtocolError, match="of a kind"):
        decode_answers(struct.pack(">QBI", 1, 3, 0))
    with pytest.raises(ProtocolError, match="more than"):
        decode_calls(encode_calls([*calls, call(0)]))


def described(ext: bytes, message: bytes = b"") -> bytes:
    return struct.pack(">II", len(ext), len(message)) + ext + message


def test_what_calls_have_in_common_is_read_once_and_each_has_its_own() -> None:
    """Clients by turns, each with its headers, with and without a deadline, as clients sign their calls or not."""
    headers = [{"x-mq-client-id": f"client {n}", "authorization": "by hand"} for n in range(3)]
    calls = [
        (ProxyCall("SendMessage", 7 + n, n % 4 * 1000, f"127.0.0.1:{n % 3}", n % 3, headers[n % 3]), b"m" * n)
        for n in range(20)
    ]
    calls.append((ProxyCall("SendMessage", 99, 0, "127.0.0.1:0", 0, {"x-mq-client-id": "another of client 0"}), b""))
    found = decode_calls(encode_calls(calls))
    assert found == calls
    assert len({id(origin.metadata) for origin, _ in found}) == 4


def test_headers_of_which_nothing_is_left_are_not_taken_for_others() -> None:
    """Each call's are made when it is asked for."""
    calls = ((ProxyCall("SendMessage", n, 0, "", 1, {"x-mq-client-id": str(n)}), b"") for n in range(50))
    assert [origin.metadata for origin, _ in decode_calls(encode_calls(calls))] == [
        {"x-mq-client-id": str(n)} for n in range(50)
    ]


def test_descriptions_are_read_in_any_order() -> None:
    """Also as brokers of an earlier version write them."""
    wanted, message = call(3)
    earlier = {"method": "SendMessage", "callId": "3", "client": "9", "timeoutMs": "3000", "peer": "127.0.0.1:5"}
    for ext in (wanted.to_ext(), earlier | {"h.x-mq-client-id": "ü3"}):
        assert decode_calls(described(orjson.dumps(ext), message)) == [(wanted, message)]
    long = b'{"callId":"3","timeoutMs":"%d","method":"SendMessage","client":"9"}'
    for timeout_ms in (0, 5, 1 << 39, 1 << 50):
        ((found, _),) = decode_calls(described(long % timeout_ms))
        assert (found.call_id, found.timeout_ms) == (3, min(timeout_ms, 1 << 40))


@pytest.mark.parametrize("rest", [b"", b"}", b'"method":1}', b'"method":"SendMessage"}', b'"client":"9"}', b"\xff}"])
def test_a_description_that_only_begins_well_is_refused(rest: bytes) -> None:
    whole = b'{"callId":"1","method":"SendMessage","client":"9"}'
    assert len(decode_calls(described(whole))) == 1
    with pytest.raises(ProtocolError):
        decode_calls(described(whole) + described(b'{"callId":"2",' + rest))


@pytest.mark.parametrize("ext", [b"", b"[]", b'{"method":1}', b'{"method":"SendMessage"}', b"\xff", b'{"callId":[]}'])
def test_descriptions_that_are_none_are_refused(ext: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_calls(struct.pack(">II", len(ext), 0) + ext)


# ---- between two brokers


def requests_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the internal requests that are sent from now on."""
    methods: list[str] = []
    request = RemotingConnection.request

    def noting(connection: RemotingConnection, code: int, ext: Any, *rest: Any) -> None:
        methods.append(ext["method"])
        request(connection, code, ext, *rest)

    monkeypatch.setattr(RemotingConnection, "request", noting)
    return methods


def start(client: RawClient, bodies: list[bytes]) -> list[int]:
    return [client.start("SendMessage", sending(body)) for body in bodies]


async def code_of(client: RawClient, stream_id: int) -> tuple[int, str]:
    ((response,), _) = await client.answer(stream_id, service.SendMessageResponse)
    return response.status.code, response.status.message


def bodies_of(node: Node) -> list[bytes]:
    """Of what is stored there."""
    return [bytes(decode_record(each.record).body) for each in node.broker.log]


async def warm(client: RawClient) -> None:
    """The replica has a connection to the master."""
    assert await send(client) == Code.OK


async def test_sends_of_a_turn_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with group_of() as group:
        client = await client_of(group.nodes[1])
        await warm(client)
        methods = requests_of(monkeypatch)
        streams = start(client, [b"%d" % number for number in range(20)])
        for stream_id in streams:
            assert (await code_of(client, stream_id))[0] == Code.OK
        assert set(methods) <= {"$sends", "SendMessage"}
        assert len(methods) < 10
        assert bodies_of(group.nodes[0])[1:] == [b"%d" % number for number in range(20)]
        forwarder = group.nodes[1].proxy._forwarder
        assert (forwarder._in_flight, forwarder._in_flight_bytes) == ({}, 0)
        assert not any(group.nodes[0].proxy._forwarded._calls.values())
        await client.close()


async def test_no_bundle_is_longer_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "MAX_CALLS", 3)
    async with group_of() as group:
        client = await client_of(group.nodes[1])
        await warm(client)
        methods = requests_of(monkeypatch)
        streams = start(client, [b"x"] * 20)
        for stream_id in streams:
            assert (await code_of(client, stream_id))[0] == Code.OK
        assert len(methods) >= 7
        await client.close()


async def bundle_of(client: RawClient, replica: Node, count: int) -> list[int]:
    """So many sends in one bundle, whatever reads bring them."""
    calls = []
    forwarder = replica.proxy._forwarder
    execute = forwarder.execute
    forwarder.execute = lambda name, some: calls.extend(some)  # type: ignore[method-assign]
    streams = [client.start("SendMessage", sending(b"%d" % number)) for number in range(count)]
    await until("all sends", lambda: len(calls) == count)
    forwarder.execute = execute  # type: ignore[method-assign]
    execute("SendMessage", calls)
    return streams


async def test_each_is_answered_when_it_is_and_none_waits_for_another() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        await warm(client)
        handler = master.proxy._forwarded._handlers["SendMessage"]
        calls: list[Any] = []
        master.proxy._forwarded._handlers = {"SendMessage": calls.extend}
        streams = await bundle_of(client, replica, 4)
        await until("a bundle", lambda: len(calls) == 4)
        handler(calls[2:3])
        assert (await code_of(client, streams[2]))[0] == Code.OK
        handler([calls[0], calls[3]])
        assert (await code_of(client, streams[0]))[0] == (await code_of(client, streams[3]))[0] == Code.OK
        assert replica.proxy._forwarder._in_flight_bytes > 0
        handler(calls[1:2])
        assert (await code_of(client, streams[1]))[0] == Code.OK
        assert replica.proxy._forwarder._in_flight_bytes == 0
        assert len(master.broker.log) == 5
        await client.close()


async def test_a_master_lost_after_some_answers_leaves_the_others_unknown() -> None:
    async with group_of(3) as group:
        first, second, replica = group.nodes
        client = await client_of(replica)
        await warm(client)
        handler = first.proxy._forwarded._handlers["SendMessage"]
        calls: list[Any] = []
        first.proxy._forwarded._handlers = {"SendMessage": calls.extend}
        streams = await bundle_of(client, replica, 3)
        await until("a bundle", lambda: len(calls) == 3)
        handler(calls[:1])
        assert (await code_of(client, streams[0]))[0] == Code.OK
        group.master = second
        first.cut()
        for stream_id in streams[1:]:
            code, text = await code_of(client, stream_id)
            assert code == Code.HA_NOT_AVAILABLE
            assert "unknown" in text
        assert second.broker.log == []
        assert await send(client) == Code.OK
        await client.close()


async def test_what_a_master_gives_back_waits_for_the_next_and_what_fails_fails() -> None:
    async with group_of(3) as group:
        first, second, replica = group.nodes
        client = await client_of(replica)
        await warm(client)
        calls: list[Any] = []
        first.proxy._forwarded._handlers = {"SendMessage": calls.extend}
        streams = await bundle_of(client, replica, 4)
        await until("a bundle", lambda: len(calls) == 4)
        group.master = second
        calls[1].fail(None, "it broke")
        for given_back in (calls[0], calls[2], calls[3]):
            given_back.give_back()
        _, fields = await client.answer(streams[1], service.SendMessageResponse)
        assert fields["grpc-message"] == "it broke"
        for stream_id in (streams[0], streams[2], streams[3]):
            assert (await code_of(client, stream_id))[0] == Code.OK
        assert bodies_of(second) == [b"0", b"2", b"3"]
        await client.close()


async def test_a_call_of_a_bundle_whose_client_left_is_cancelled_alone() -> None:
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        await warm(client)
        handler = master.proxy._forwarded._handlers["SendMessage"]
        calls: list[Any] = []
        master.proxy._forwarded._handlers = {"SendMessage": calls.extend}
        streams = await bundle_of(client, replica, 2)
        await until("a bundle", lambda: len(calls) == 2)
        client.writer.write(frames.encode_rst_stream(streams[0], ErrorCode.CANCEL))
        await until("the master knows", lambda: not calls[0].live)
        assert calls[1].live
        handler(calls[1:])
        assert (await code_of(client, streams[1]))[0] == Code.OK
        assert not any(master.proxy._forwarded._calls.values())
        await client.close()


async def test_a_master_of_an_earlier_version_gets_them_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        await warm(client)
        monkeypatch.setattr("brokerd.proxy.forwarded.SENDS", "$of later")
        for _ in range(2):
            streams = await bundle_of(client, replica, 5)
            for stream_id in streams:
                assert (await code_of(client, stream_id))[0] == Code.OK
        assert bodies_of(master)[1:] == [b"0", b"1", b"2", b"3", b"4"] * 2
        assert replica.proxy._forwarder._in_flight_bytes == 0
        await client.close()


@pytest.mark.parametrize("body", [b"", b"x", encode_calls([call(1)])[:-1]])
async def test_a_bundle_that_cannot_be_read_is_answered_with_an_error(body: bytes) -> None:
    async with group_of() as group:
        connection = await connect(group.nodes[0].address)
        response = await connection.call(codes.PROXY_CALL, ProxyCall(bundles.SENDS, 1).to_ext(), body)
        assert response.code != codes.SUCCESS
        connection.close()
        await until("no connection", lambda: not group.nodes[0].server.connections)


async def test_an_answer_that_says_nothing_fails_what_is_left() -> None:
    """As of a master that is broken: nobody is asked for more for ever."""
    async with group_of() as group:
        master, replica = group.nodes
        client = await client_of(replica)
        await warm(client)
        (forwarded,) = master.server.connections

        def broken(connection: RemotingConnection, requests: Any) -> None:
            for request in requests:
                connection.respond(request, codes.SUCCESS, {"more": "1"}, b"")

        forwarded._handlers = {codes.PROXY_CALL: broken}  # type: ignore[attr-defined]
        for stream_id in await bundle_of(client, replica, 3):
            async with asyncio.timeout(60):
                _, fields = await client.answer(stream_id, service.SendMessageResponse)
            assert fields["grpc-message"] == "the master gave no answer"
        await client.close()
