"""What is measured: each piece of work loads a running system and says how many messages it acknowledged or gave out.

Every piece has its own topic, and compares what is stored with what was acknowledged.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.bench.compare.java_client import JavaClient
from tests.bench.compare.systems import BACKGROUND_FLUSH, DISK_FLUSH, GRPC, GRPC_LOCAL, QUEUES, REPLICAS, Running
from tests.bench.compare.timers import due_in_one_second
from tests.bench.grpc_sends import send_request
from tests.bench.h2load import GrpcLoad
from tests.bench.harness import Sample, run_load
from tests.bench.receive_ack import consume, sample_of
from tests.bench.sends import check_stored, wait_stored

_MANY_QUEUES: Final = 16
_FILLED: Final = 400_000  # messages that raw pulls and the Java consumer find
_RECEIVED: Final = 40_000  # messages that consumers over gRPC find
_THREADS: Final = 64
# A JVM that began seconds ago compiles on a third of two processors while it is measured: that would be a part of the ratio.
_JAVA_WARM_UP_S: Final = 20.0


@dataclass(frozen=True)
class Tools:
    """The load programs, how long each measurement lasts, and how many timers are due in one second."""

    load: Path
    pull: Path
    java: JavaClient | None
    seconds: float
    due: int


@dataclass(frozen=True)
class Work:
    """One row: its measurement, the setup that it needs, and the least ratio that ours must reach of the original's rate."""

    name: str
    setup: str
    measure: Callable[[Running, Tools], Sample]
    goal: float
    uses_java: bool = False


def _counted(running: Running, load: Callable[[], tuple[Sample, int]]) -> tuple[Sample, int]:
    """The sample with the CPU time per message of the processes that served it, what they put off included."""
    running.settle()
    before_s = running.cpu_seconds()
    sample, messages = load()
    running.settle()
    used_s = running.cpu_seconds() - before_s
    return replace(sample, cpu_us=used_s * 1e6 / messages), messages


def raw_sends(
    connections: int, in_flight: int, body_bytes: int = 1024, batch: int = 0
) -> Callable[[Running, Tools], Sample]:
    """Sends by the compiled load program."""

    def measure(running: Running, tools: Tools) -> Sample:
        topic = running.new_topic()

        def load() -> tuple[Sample, int]:
            return run_load(
                tools.load,
                running.address,
                topic,
                queues=QUEUES,
                connections=connections,
                in_flight=in_flight,
                seconds=tools.seconds,
                body_bytes=body_bytes,
                batch=batch,
                may_fail=True,
            )

        sample, acknowledged = _counted(running, load)
        check_stored(acknowledged, lambda: running.stored(topic), sample.failures * max(1, batch))
        return sample

    return measure


def timers_due(running: Running, tools: Tools) -> Sample:
    """See `timers.due_in_one_second`."""
    return due_in_one_second(running, tools.load, tools.due)


def fill(running: Running, tools: Tools, queues: int = QUEUES) -> tuple[str, int]:
    """A new topic with at least as many messages as a consumer needs to be measured, sent one by one; and their number."""
    topic = running.new_topic(queues)
    return topic, _store(running, tools, topic, queues, _FILLED)


def _store(running: Running, tools: Tools, topic: str, queues: int, least: int) -> int:
    while (stored := running.stored(topic, queues)) < least:
        run_load(tools.load, running.address, topic, queues=queues, in_flight=_THREADS, seconds=1, may_fail=True)
    return stored


def raw_pulls(running: Running, tools: Tools) -> Sample:
    """Pulls of 32 messages by the compiled program, four connections with one request each."""
    topic, _ = fill(running, tools)
    host, port = running.address.split(":")

    def load(seconds: float) -> tuple[Sample, int]:
        words = [tools.pull, host, port, topic, QUEUES, 4, 1, seconds]
        output = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout
        result = json.loads(output)
        return Sample(result["messages_per_s"], result["p50_us"], result["p99_us"]), result["messages"]

    load(tools.seconds / 2)  # no pull was made before
    return _counted(running, lambda: load(tools.seconds))[0]


def java_produces(running: Running, tools: Tools) -> Sample:
    """One producer of the Java client, 64 threads that send synchronously."""
    topic = running.new_topic()
    words = ("produce", running.name_server, topic, "bench", _THREADS, _warm_up_s(tools), tools.seconds, 1024)
    result, sample = _java(running, tools, "acknowledged", *words)
    check_stored(result["acknowledged"], lambda: running.stored(topic), result["failures_in_all"])
    return sample


def java_consumes(running: Running, tools: Tools) -> Sample:
    """A push consumer of the Java client reads a filled topic to its end."""
    topic, messages = fill(running, tools)
    return _java(running, tools, "messages", "consume", running.name_server, topic, "bench-consumers", messages)[1]


def java_both(running: Running, tools: Tools) -> Sample:
    """A producer and a push consumer of the Java client at once; the slower one's rate."""
    return _java_both(running, tools, "both")


def java_gathers(running: Running, tools: Tools) -> Sample:
    """The same with a producer that gathers messages into batches by itself."""
    return _java_both(running, tools, "gather")


def _warm_up_s(tools: Tools) -> float:
    return max(tools.seconds, _JAVA_WARM_UP_S)


def _java_both(running: Running, tools: Tools, mode: str) -> Sample:
    topic = running.new_topic(_MANY_QUEUES)
    words = (mode, running.name_server, topic, "bench-both", _THREADS, _warm_up_s(tools), tools.seconds, 1024)
    result, sample = _java(running, tools, "acknowledged", *words)
    check_stored(result["acknowledged"], lambda: running.stored(topic, _MANY_QUEUES), result["failures_in_all"])
    return replace(sample, rate=min(result["messages_per_s"], result["consumed_per_s"]))


def _java(running: Running, tools: Tools, counted: str, *words: object) -> tuple[dict[str, Any], Sample]:
    assert tools.java is not None
    running.settle()
    before_s = running.cpu_seconds()
    result = tools.java.run(*words)
    running.settle()
    used_s = running.cpu_seconds() - before_s
    sample = Sample(
        result["messages_per_s"],
        result.get("p50_us", 0),
        result.get("p99_us", 0),
        used_s * 1e6 / result[counted],
        result.get("failures", 0),
    )
    return result, sample


def grpc_sends(connections: int, streams: int) -> Callable[[Running, Tools], Sample]:
    """Unary sends over gRPC by h2load, which sees that a call was answered, but not whether the answer is a refusal: what is not
    stored was refused."""

    def measure(running: Running, tools: Tools) -> Sample:
        topic = running.new_topic()
        load = GrpcLoad("SendMessage", send_request(topic, 1024), connections, streams, tools.seconds)
        sample, answered = _counted(running, lambda: load(running.grpc_address, running.brokers[-1].pid))
        stored = wait_stored(answered, lambda: running.stored(topic))
        if stored > answered:
            raise RuntimeError(f"{answered} sends were answered and {stored} messages are stored")
        return replace(sample, rate=sample.rate * stored / answered, failures=answered - stored)

    return measure


def grpc_receives(running: Running, tools: Tools) -> Sample:
    """Receives and acks of 32 messages over gRPC, by several processes with several conversations each; topic after topic, the
    median of them. A conversation ends with the first receive that brings nothing; what is left then counts as failed."""
    found: list[Sample] = []
    consumed_s = 0.0
    while consumed_s < tools.seconds:
        topic = running.new_topic()
        consume("grpc", running.grpc_address, topic, _readers(topic))  # a group that is new begins with what comes then
        stored = _store(running, tools, topic, QUEUES, _RECEIVED)
        sample, acknowledged = _counted(running, partial(_receive_all, running.grpc_address, topic))
        found.append(replace(sample, failures=stored - acknowledged))
        consumed_s += acknowledged / sample.rate
    return sorted(found, key=lambda sample: sample.rate)[len(found) // 2]


def _receive_all(address: str, topic: str) -> tuple[Sample, int]:
    results = consume("grpc", address, topic, _readers(topic))
    acknowledged = sum(result["acked"] for result in results)
    return sample_of(results, acknowledged, used_s=0), acknowledged  # who counts knows what was used


def _readers(topic: str) -> str:
    return f"{topic}-readers"


ROWS: Final[Sequence[Work]] = (
    Work("send, 1 x 64", BACKGROUND_FLUSH, raw_sends(1, 64), 4.0),
    Work("send, 4 x 64", BACKGROUND_FLUSH, raw_sends(4, 64), 3.0),
    Work("send, 64 x 1", BACKGROUND_FLUSH, raw_sends(64, 1), 1.8),
    Work("send, 1 x 1", BACKGROUND_FLUSH, raw_sends(1, 1), 1.6),
    Work("send, 1 x 64 of 100 bytes", BACKGROUND_FLUSH, raw_sends(1, 64, 100), 3.0),
    Work("send, batches of 32", BACKGROUND_FLUSH, raw_sends(1, 64, 1024, 32), 3.0),
    Work("raw pull, 32 messages a request, 4 connections", BACKGROUND_FLUSH, raw_pulls, 2.0),
    Work("Java producer, 64 threads", BACKGROUND_FLUSH, java_produces, 1.8, uses_java=True),
    Work("Java push consumer", BACKGROUND_FLUSH, java_consumes, 1.5, uses_java=True),
    Work("Java producer and consumer at once, 16 queues", BACKGROUND_FLUSH, java_both, 1.8, uses_java=True),
    Work("the same with autoBatch", BACKGROUND_FLUSH, java_gathers, 1.5, uses_java=True),
    Work("timers that are due in one second", BACKGROUND_FLUSH, timers_due, 2.0),
    Work("send, 1 x 64", DISK_FLUSH, raw_sends(1, 64), 4.0),
    Work("send, 64 x 1", DISK_FLUSH, raw_sends(64, 1), 2.5),
    Work("send, 1 x 1", DISK_FLUSH, raw_sends(1, 1), 5.0),
    Work("send, batches of 32", DISK_FLUSH, raw_sends(1, 64, 1024, 32), 3.0),
    Work("Java producer, 64 threads", DISK_FLUSH, java_produces, 1.5, uses_java=True),
    Work("send, 1 x 64", REPLICAS, raw_sends(1, 64), 6.0),
    Work("send, 1 x 1", REPLICAS, raw_sends(1, 1), 2.0),
    Work("send, 4 x 16", GRPC, grpc_sends(4, 16), 10.0),
    Work("send, 1 x 64", GRPC, grpc_sends(1, 64), 2.0),
    Work("send, 1 x 1", GRPC, grpc_sends(1, 1), 2.0),
    Work("receive + ack of 32", GRPC, grpc_receives, 3.0),
    Work("send, 4 x 16", GRPC_LOCAL, grpc_sends(4, 16), 4.0),
    Work("receive + ack of 32", GRPC_LOCAL, grpc_receives, 2.0),
)
