"""The metrics listener: what it answers, what it bounds, and that a taken port stops nobody."""

from __future__ import annotations

import asyncio
import logging

import pytest

from remoting.exporter import MetricsExporter, MetricsSettings


async def _ask(exporter: MetricsExporter, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def _is_answered(exporter: MetricsExporter) -> bool:
    try:
        return (await _ask(exporter, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b"here 1\n")
    except ConnectionError:
        return False


async def test_it_renders_at_every_scrape() -> None:
    scrapes = 0

    def render() -> bytes:
        nonlocal scrapes
        scrapes += 1
        return b"scrapes %d\n" % scrapes

    exporter = MetricsExporter("127.0.0.1", 0, render)
    await exporter.start()
    try:
        first = await _ask(exporter, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 10\r\n" in first
        assert first.endswith(b"\r\n\r\nscrapes 1\n")
        assert (await _ask(exporter, b"GET /metrics?x=1 HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\nscrapes 2\n")
        head = await _ask(exporter, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 10\r\n" in head
        assert head.endswith(b"\r\n\r\n")
    finally:
        await exporter.close()
    assert exporter.port is None


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"\r\n\r\n", b"405 Method Not Allowed"),
    ],
)
async def test_it_says_what_it_does_not_understand(request_bytes: bytes, status: bytes) -> None:
    exporter = MetricsExporter("127.0.0.1", 0, lambda: b"")
    await exporter.start()
    try:
        assert (await _ask(exporter, request_bytes)).startswith(b"HTTP/1.1 " + status)
    finally:
        await exporter.close()


async def test_a_request_without_end_is_dropped_at_its_bound() -> None:
    exporter = MetricsExporter("127.0.0.1", 0, lambda: b"")
    await exporter.start()
    try:
        with pytest.raises((ConnectionResetError, BrokenPipeError, AssertionError)):
            assert await _ask(exporter, b"GET /" + b"a" * 20_000), "closed without an answer"
    finally:
        await exporter.close()


async def test_connections_beyond_the_bound_are_refused() -> None:
    exporter = MetricsExporter("127.0.0.1", 0, lambda: b"here 1\n")
    await exporter.start()
    try:
        idle = [await asyncio.open_connection("127.0.0.1", exporter.port) for _ in range(32)]
        reader, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 10)
        writer.close()
        for _, each in idle:
            each.close()
            await each.wait_closed()
        async with asyncio.timeout(60):
            while not await _is_answered(exporter):
                await asyncio.sleep(0)
    finally:
        await exporter.close()


async def test_a_taken_port_is_logged_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    first = MetricsExporter("127.0.0.1", 0, lambda: b"")
    await first.start()
    assert first.port is not None
    second = MetricsExporter("127.0.0.1", first.port, lambda: b"")
    with caplog.at_level(logging.ERROR):
        await second.start()
    assert second.port is None
    assert "choose a port with --set metrics.port=N" in caplog.text
    await second.close()
    await first.close()


@pytest.mark.parametrize(
    ("port", "own", "expected"), [(0, 9876, 19876), (0, 60000, 50000), (5557, 9876, 5557), (-1, 9876, None)]
)
def test_where_it_listens(port: int, own: int, expected: int | None) -> None:
    assert MetricsSettings(port=port).scrape_port(own) == expected
