"""The bytes of the real C# client, replayed: what it said to a broker in memory is said again, call by call, to another one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import hpack
import pytest

from brokerd.pop.settings import PopSettings
from brokerd.proxy.grpc import SERVICE_PATH
from brokerd.proxy.http2 import frames
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code
from remoting.record.properties import decode_properties
from tests.unit.brokerd.proxy.fakes import FakeBroker
from tests.unit.brokerd.proxy.h2client import Frame, split
from tests.unit.brokerd.proxy.rawclient import RawClient, parse
from tests.unit.brokerd.proxy.test_endpoint import serving

RECORDED = Path(__file__).parents[3] / "golden" / "rocketmq-client-csharp-5.2.1"


class Recording:
    """What one client wrote to its connection."""

    def __init__(self, name: str) -> None:
        self.data = (RECORDED / name).read_bytes()
        self.frames = split(self.data.removeprefix(frames.PREFACE))
        self.pings = [frame.payload for frame in self.frames if frame.kind == frames.PING]
        self.calls: dict[int, dict[str, str]] = {}
        for frame in self.frames:
            if frame.kind == frames.HEADERS:
                self.calls[frame.stream_id] = dict(hpack.Decoder().decode(frame.payload))

    def streams(self, method: str) -> list[int]:
        return [stream for stream, headers in self.calls.items() if headers[":path"] == SERVICE_PATH + method]


class Answers:
    """What a broker answered to a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._bodies = {stream: b"" for stream in recording.calls}
        self.statuses: dict[int, str] = {}
        self.pongs: list[bytes] = []

    def take(self, frame: Frame, decoder: hpack.Decoder) -> None:
        assert frame.kind not in (frames.RST_STREAM, frames.GOAWAY), frame
        if frame.kind == frames.PING:
            self.pongs.append(frame.payload)
        elif frame.kind == frames.DATA:
            self._bodies[frame.stream_id] += frame.payload
        elif frame.kind == frames.HEADERS:
            fields = dict(decoder.decode(frame.payload))
            if "grpc-status" in fields:
                self.statuses[frame.stream_id] = fields["grpc-status"]

    def of(self, method: str, which: int = 0) -> list[Any]:
        kind = service.TelemetryCommand if method == "Telemetry" else getattr(service, method + "Response")
        return parse(self._bodies[self._recording.streams(method)[which]], kind)


async def replay(port: int, name: str) -> Answers:
    """Say it all at once; the answers, when every call has one but those that wait for something to happen."""
    recording = Recording(name)
    answers = Answers(recording)
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    client.writer.write(recording.data)
    waiting = {*recording.streams("Telemetry"), *recording.streams("ReceiveMessage")[1:]}
    async with asyncio.timeout(60):
        while recording.calls.keys() - waiting - answers.statuses.keys() or not answers.of("Telemetry"):
            answers.take(await client.frame(), client.decoder)
    await client.close()
    assert set(answers.statuses.values()) == {"0"}
    assert answers.pongs == recording.pings
    return answers


async def test_the_csharp_clients_conversations() -> None:
    broker = FakeBroker()
    broker.settings = PopSettings(min_wait_ms=1000)  # the recorded simple consumer waits for one second
    broker.add_topic("Orders")
    broker.add_topic("Ordered", "FIFO")
    async with serving(broker) as proxy:
        produced = await replay(proxy.endpoint.port, "producer")
        assert [produced.of("SendMessage", n)[0].status.code for n in range(3)] == [Code.OK] * 3
        sent = [draft for drafts in broker.sends for draft in drafts]
        assert [(draft.topic, len(draft.body)) for draft in sent] == [("Orders", 5), ("Ordered", 6), ("Orders", 20000)]
        first, second, _ = (decode_properties(draft.properties) for draft in sent)
        assert {"TAGS": "tag", "KEYS": "one two", "colour": "blue"}.items() <= first.items()
        assert second["__SHARDINGKEY"] == "group"
        assert len(broker.unregistered) == 1

        pushed = await replay(proxy.endpoint.port, "push-consumer")
        told = pushed.of("Telemetry")[0]
        # without either it ends its stream, or asks all the time for nothing
        assert told.settings.backoff_policy.WhichOneof("strategy")
        assert told.settings.subscription.receive_batch_size
        assert told.settings.subscription.long_polling_timeout.seconds
        assert [each.WhichOneof("content") for each in pushed.of("ReceiveMessage")].count("message") == 2
        assert len(pushed.of("QueryAssignment")[0].assignments) == 1

        taken = await replay(proxy.endpoint.port, "simple-consumer")
        assert [each.WhichOneof("content") for each in taken.of("ReceiveMessage")].count("message") == 1
        assert {pop.group for pop in broker.pops} == {"Pushed", "Taken"}


@pytest.mark.parametrize("name", ["producer", "push-consumer", "simple-consumer"])
def test_what_was_recorded_is_what_the_stand_in_does(name: str) -> None:
    """`dotnetclient.py` says how .NET speaks; this says that it does."""
    recording = Recording(name)
    settings, window = recording.frames[:2]
    assert settings.payload == bytes.fromhex("000200000000 00040000ffff")
    assert (window.kind, window.stream_id, int.from_bytes(window.payload)) == (
        frames.WINDOW_UPDATE,
        0,
        (64 << 20) - 65535,
    )
    assert recording.pings == [(-number).to_bytes(8, signed=True) for number in range(1, len(recording.pings) + 1)]
    assert not any(frame.flags & frames.END_STREAM for frame in recording.frames if frame.payload)
    assert all(call["x-mq-language"] == "DOTNET" and call[":scheme"] == "https" for call in recording.calls.values())
    (telemetry,) = recording.streams("Telemetry")
    assert recording.calls[telemetry]["grpc-timeout"] == "99999999S"
