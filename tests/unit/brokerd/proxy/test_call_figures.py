"""What is counted of gRPC calls: each once, by what it was answered, and the streams that are open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.proxy.calls import CANCELLED, CallFigures, StatuslessFigures, decode_varint
from brokerd.proxy.client_figures import Labels
from brokerd.proxy.otlp import MAX_REQUEST_BYTES, METRICS_PATH
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import OK, Code, Refusal, code_name, encode_length, status_field
from tests.unit.brokerd.proxy.rawclient import RawClient
from tests.unit.brokerd.proxy.test_client_reports import histogram
from tests.unit.brokerd.proxy.test_endpoint import heartbeat, serving
from tests.unit.brokerd.proxy.test_methods import producer, resource, sending, settings_of
from tests.unit.brokerd.proxy.test_receive_message import receiving
from tests.unit.brokerd.proxy.waiting import until


@given(st.integers(0, 1 << 40))
def test_a_varint_is_read_as_it_is_written(number) -> None:
    assert decode_varint(encode_length(number) + b"\xff") == number


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("text", ["", "why", "x" * 200])
def test_a_response_is_counted_by_the_code_in_its_status(code, text) -> None:
    figures = CallFigures()
    status = OK if (code, text) == (Code.OK, "") else Refusal(code, text).status
    figures.answered(status + b"the rest")
    assert figures.by_code(code_name) == {code.name: 1}


def test_what_a_client_is_told_unasked_is_no_answer() -> None:
    figures = CallFigures()
    recover = service.TelemetryCommand()
    recover.recover_orphaned_transaction_command.transaction_id = "T"
    reconnect = service.TelemetryCommand()
    reconnect.reconnect_endpoints_command.nonce = "n"
    for command in (recover, reconnect):
        figures.answered(command.SerializeToString())
    assert figures.by_code(code_name) == {}


def test_the_codes_that_are_told_apart_are_bounded() -> None:
    figures = CallFigures()
    for code in range(10_000, 10_200):
        figures.answered(status_field(code, ""))
    found = figures.by_code(code_name)
    assert len(found) <= 65
    assert sum(found.values()) == 200


def test_a_method_without_a_status_counts_its_responses_as_ok() -> None:
    figures = StatuslessFigures()
    for message in (b"", b"\x0a\x03\x08\x96\x01"):
        figures.answered(message)
    figures.ended(CANCELLED)
    assert figures.by_code(code_name) == {"OK": 2, "CANCELLED": 1}


async def test_every_call_over_a_socket_is_counted_once() -> None:
    async with serving() as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        for _ in range(3):
            assert await heartbeat(client) == Code.OK
        unknown = service.QueryRouteRequest(topic=resource("Unknown"))
        await client.call("QueryRoute", unknown, service.QueryRouteResponse)
        await client.call("SendMessage", sending(b"x"), service.SendMessageResponse)
        found, _ = await client.answer(client.start("ReceiveMessage", receiving()), service.ReceiveMessageResponse)
        assert found[0].status.code == Code.OK
        calls = {method: codes for method, codes in proxy.figures().calls.items() if codes}
        assert calls == {
            "Heartbeat": {"OK": 3},
            "QueryRoute": {"TOPIC_NOT_FOUND": 1},
            "SendMessage": {"OK": 1},
            "ReceiveMessage": {"OK": 1},
        }
        assert proxy.figures().connections == 1
        await client.close()


async def test_a_client_that_goes_while_it_waits_is_counted_as_that() -> None:
    async with serving() as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        client.start("ReceiveMessage", receiving())
        await until("the call waits", lambda: proxy._methods.receive.waiting)
        await client.close()
        await until("the client is gone", lambda: not proxy.endpoint.connections)
        assert proxy.figures().calls["ReceiveMessage"] == {"CANCELLED": 1}


async def test_telemetry_streams_are_counted_while_they_are_open() -> None:
    async with serving() as proxy:
        one, other = [await RawClient.connect(proxy.endpoint.port) for _ in range(2)]
        one.start("Telemetry", settings_of(producer("Normal")), end=False)
        ending = one.start("Telemetry", settings_of(producer("Normal")), end=False)
        other.start("Telemetry", settings_of(producer("Normal")), end=False)
        await until("3 streams", lambda: proxy.figures().telemetry_streams == 3)
        await until("their answers", lambda: proxy.figures().calls["Telemetry"] == {"OK": 3})
        one.send(ending, settings_of(producer("Normal")), end=True)
        await until("2 streams", lambda: proxy.figures().telemetry_streams == 2)
        await other.close()
        await until("1 streams", lambda: proxy.figures().telemetry_streams == 1)
        await one.close()
        await until("0 streams", lambda: proxy.figures().telemetry_streams == 0)
        assert proxy.figures().calls["Telemetry"] == {"OK": 4}


async def test_clients_export_their_metrics_to_the_same_port() -> None:
    async with serving() as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        path = {":path": METRICS_PATH}
        request = histogram(topic="Normal", since_ms=2 * 1_763_600_000_000)
        found, fields = await client.answer(client.start("", request, **path), service.HeartbeatResponse)
        assert (len(found), fields["grpc-status"]) == (1, "0")
        ((labels, series),) = proxy.figures().clients.series(0)
        assert labels == Labels("send", "Normal", "", "PYTHON", "success")
        assert sum(series.total.counts) == 1
        _, fields = await client.answer(
            client.start("", bytes(MAX_REQUEST_BYTES + 1), **path), service.HeartbeatResponse
        )
        assert fields["grpc-status"] == "8", "less than other methods take"
        assert proxy.figures().calls["ExportMetrics"] == {"OK": 1, "RESOURCE_EXHAUSTED": 1}
        await client.close()
