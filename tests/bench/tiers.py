"""Tiers: what uploading costs those who send, and how fast messages come back from an object store.

    python -m tests.bench.tiers [--pairs N] [--seconds S] [--megabytes N] [--only TEXT]

Sends and reads by Spark's reader are of a real broker whose tier is a directory. What the latency of an object store does is
measured in this process, on the reading side alone: 8 readers, each of a queue of its own, every request 20 ms late.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from brokerd.loop.aside import HelperThreads
from brokerd.loop.cold_line import Clocks
from brokerd.native.library import load
from brokerd.store.log.record_checks import first_astray_in_c
from brokerd.store.unit import UNIT
from brokerd.tiers.objects.backend import Backend, open_backend
from brokerd.tiers.objects.interface import Read
from brokerd.tiers.reading.cold_reads import ColdReads
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload.uploader import Loop
from remoting import codes
from remoting.checksum import crc32
from remoting.client.socket_connection import SocketConnection
from remoting.record.codec import encode_record
from remoting.tier.contents import Queue
from remoting.tier.segments import QueueSegments, Segment
from tasks.spark.cluster import Cluster as Asked
from tasks.spark.cluster import find_ranges
from tasks.spark.options import Options
from tests.bench import bulk_reads
from tests.bench.harness import Pairs, Row, Sample, in_pairs, load_program, pull_program, run_load
from tests.bench.idle_clients import counted
from tests.bench.processes import cpu_seconds, wait_at_rest
from tests.bench.sends import BACKGROUND, NO_INDEX, TOPIC, broker, check_stored
from tests.bench.tier_timers import timers
from tests.support.cluster import Cluster
from tests.support.cold_reading import FILLER, make_cold, make_topic, send_batch
from tests.support.pulling import pull_fields

LATENCY_S: Final = 0.020
READERS: Final = 8
BYTES_PER_S: Final = 200_000_000
FIRST_REQUESTS: Final = 2
_BODY_BYTES: Final = 1024
HOT_RATIO: Final = 1.2
_HOT: Final = "Hot"
_WARM: Final = "Warm"
_WARM_MESSAGES: Final = 2000  # which the log's last file has
_PULLED: Final = 32  # messages in an answer
_SMALL_CACHE: Final = "tiers.cache_bytes=16777216"  # what is read is not there the next time
_UPLOADED_S: Final = 120
_LOOK_S: Final = 0.5
_UPLOADED: Final = re.compile(r"^logboom_tier_uploaded_messages_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_MISSES: Final = re.compile(r"^logboom_tier_cache_misses_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_GIVEN: Final = re.compile(r"^logboom_tier_downloaded_messages_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_READ: Final = re.compile(r"^logboom_messages_out_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_WAITING: Final = re.compile(r"^logboom_tier_waiting_messages(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_SEGMENT_MESSAGES: Final = 4096
_READ_MESSAGES: Final = 1024
_READ_BYTES: Final = 4 << 20
_LOG_END: Final = re.compile(r"^logboom_log_end_offset_bytes(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_FILE_BYTES: Final = 16 << 20
_COLD: Final = (
    f"store.segment_size_bytes={_FILE_BYTES}",
    "retention.reserved_time_ms=1000",
    "retention.interval_ms=100",
)


@contextmanager
def tier() -> Iterator[tuple[str, ...]]:
    """Settings for a directory that is there so long."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        yield (f"tiers.url=file://{directory}/tier", "tiers.commit_interval_ms=1000")
    finally:
        shutil.rmtree(directory)


# ---- sends


def sends(program: Path, pairs: int, seconds: float, batch: int) -> Row:
    """Sends while everything is uploaded, against no tier. CPU time is that of all the work, also of what is done later: until
    all is in the tier, and the index of keys has all."""
    in_tier: list[float] = []

    def measure(settings: tuple[str, ...], *, is_tiered: bool) -> Sample:
        with broker(1, (*BACKGROUND, *settings)) as (cluster, address):
            pid = cluster.brokers[0].pid
            before_s, began_s = cpu_seconds(pid), time.monotonic()
            sample, acknowledged = run_load(program, address, TOPIC, seconds=seconds, batch=batch)
            if is_tiered:
                _wait_uploaded(address, acknowledged)
                in_tier.append(acknowledged / (time.monotonic() - began_s))
            wait_at_rest(pid)
            used_s = cpu_seconds(pid) - before_s
            check_stored(acknowledged, lambda: sum(each.max_offset for each in cluster.admin.queue_offsets(TOPIC)))
            return replace(sample, cpu_us=used_s * 1e6 / acknowledged)

    def with_tier() -> Sample:
        with tier() as settings:
            return measure(settings, is_tiered=True)

    name = f"sends of 1 KiB{f', batches of {batch}' if batch else ''}: with a tier / without"
    row = in_pairs(name, pairs, with_tier, lambda: measure((), is_tiered=False), 0.85).row
    rate = statistics.median(in_tier[1:])
    return replace(row, figure=f"{row.figure}; in the tier {rate:.0f}/s, the wait for a batch's time included")


def _wait_uploaded(address: str, messages: int) -> None:
    """Not looked at often: that takes the broker's time, too."""
    deadline = time.monotonic() + _UPLOADED_S
    while counted(address, _UPLOADED) < messages or counted(address, _WAITING):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{messages} messages are not in the tier after {_UPLOADED_S} s")
        time.sleep(_LOOK_S)


# ---- a broker's cold messages


def reads(program: Path, pairs: int, messages: int) -> Pairs:
    """All of a topic in bulk, by one task: from the tier, against files."""

    def read(settings: tuple[str, ...], *, is_cold: bool) -> Sample:
        with broker(1, (*BACKGROUND, NO_INDEX, *settings)) as (cluster, address):
            make_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
            stored = 0
            while stored < messages:
                stored += run_load(program, address, TOPIC, seconds=0.25, batch=32, in_flight=8)[1]
            check_stored(stored, lambda: sum(each.max_offset for each in cluster.admin.queue_offsets(TOPIC)))
            if is_cold:
                make_cold(cluster, 300)
            options = Options.parse({"controllers": ",".join(cluster.controller_addresses), "subscribe": TOPIC})
            pid = cluster.brokers[0].pid
            with Asked(options.controllers) as asked:
                ranges = find_ranges(asked, options)
                before_s, began_s = cpu_seconds(pid), time.monotonic()
                rows = bulk_reads.count(bulk_reads.in_bulk(asked, ranges, bulk_reads.REPORT))
                took_s, used_s = time.monotonic() - began_s, cpu_seconds(pid) - before_s
            if rows != stored:
                raise RuntimeError(f"{stored} messages are stored and {rows} were read")
            return Sample(rows / took_s, cpu_us=used_s * 1e6 / rows)

    def cold() -> Sample:
        with tier() as settings:
            return read((*settings, *_COLD), is_cold=True)

    return in_pairs("reads in bulk: from a directory / from files", pairs, cold, lambda: read((), is_cold=False), 0.5)


# ---- hot reads beside cold ones


def hot(program: Path, pairs: int, seconds: float, messages: int) -> list[Row]:
    """The p99 of pulls of one message that is in the files: beside cold readers, beside as many who read as much of what is in
    files, and alone. The load shares the processors with the broker, so the last two tell what of it is the tier's doing. What
    the cold readers get meanwhile is shown, too."""
    with ExitStack() as stack:
        settings = stack.enter_context(tier())
        cluster, address = stack.enter_context(broker(1, (*BACKGROUND, NO_INDEX, *settings, *_COLD, _SMALL_CACHE)))
        make_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
        stored = 0
        while stored < messages:
            stored += run_load(program, address, TOPIC, seconds=0.25, batch=32, in_flight=8)[1]
        make_cold(cluster, 300)
        hot_and_warm = ((_WARM, _WARM_MESSAGES), (_HOT, 1))
        for topic, _ in hot_and_warm:
            make_topic(cluster, topic, attributes="+message.type=NORMAL,+tier.enable=false")
        _make_room(cluster, address)
        for topic, count in hot_and_warm:
            send_batch(cluster, topic, 0, [bytes(_BODY_BYTES)] * count)
        readers = Readers(stack.enter_context(pull_program()), address, cluster.brokers[0].pid)
        queues = len(cluster.admin.queue_offsets(TOPIC))
        to_cold, to_warm, in_loop = list[float](), list[float](), list[float]()
        for _ in range(pairs + 1):  # the first one is not counted
            alone = _hot_p99(readers, seconds)
            beside, pulls = _beside_cold(readers, seconds, queues)
            warm = _beside_warm(readers, seconds, pulls)
            to_cold.append(beside.us / alone.us)
            to_warm.append(beside.us / warm.us)
            in_loop.append(beside.running_us / alone.running_us)
            print(
                f"hot reads: p99 {beside} us beside {READERS} cold readers of {pulls:.0f} answers a second "
                f"({pulls * _PULLED * _BODY_BYTES / 1e6:.0f} MB/s), "
                f"{warm} beside readers of files, {alone} alone",
                flush=True,
            )
    return [
        _hot_row("alone", to_cold[1:]),
        _hot_row("beside readers of files", to_warm[1:]),
        _hot_row("alone, without waits for a processor", in_loop[1:]),
    ]


def _make_room(cluster: Cluster, address: str) -> None:
    """What the log's last file has stays; so what comes now is to have room there."""
    while -counted(address, _LOG_END) % _FILE_BYTES < 2 * _WARM_MESSAGES * _BODY_BYTES:
        send_batch(cluster, FILLER, 0, [bytes(_BODY_BYTES)] * _WARM_MESSAGES)


def _hot_row(against: str, ratios: Sequence[float]) -> Row:
    ratio = statistics.median(ratios)
    spread = f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    name = f"p99 of hot reads: beside {READERS} cold readers / {against}"
    return Row(name, spread, f"<= {HOT_RATIO}", ratio <= HOT_RATIO)


class P99(NamedTuple):
    """Of pulls; `running_us` without the time in which the broker's loop or the client waited for a processor."""

    us: float
    running_us: float

    def __str__(self) -> str:
        return f"{self.us:.0f} ({self.running_us:.0f})"


class Readers(NamedTuple):
    """Who reads beside: so many connections to the broker, each of which asks again when it has its answer."""

    program: Path
    address: str
    broker_pid: int

    @contextmanager
    def reading(self, topic: str, queues: int, seconds: float, *pulls_per_second: str) -> Iterator[None]:
        """For some seconds at most."""
        host, port = self.address.rsplit(":", 1)
        asked = host, port, topic, str(queues), str(READERS), "1", str(seconds), *pulls_per_second
        with subprocess.Popen([self.program, *asked], stdout=subprocess.DEVNULL) as readers:
            try:
                yield
                if readers.poll() is not None:
                    raise RuntimeError("the readers ended too early")
            finally:
                readers.kill()


def _beside_cold(readers: Readers, seconds: float, queues: int) -> tuple[P99, float]:
    """And how many answers a second the cold readers had."""
    address = readers.address
    misses = counted(address, _MISSES)
    with readers.reading(TOPIC, queues, seconds + _UPLOADED_S):
        _wait_more(address, _MISSES, misses + READERS)
        misses, given, began_s = counted(address, _MISSES), counted(address, _GIVEN), time.monotonic()
        beside = _hot_p99(readers, seconds)
        given, took_s = counted(address, _GIVEN) - given, time.monotonic() - began_s
        if counted(address, _MISSES) == misses:
            raise RuntimeError("nobody read what is in the tier only")
    return beside, given / _PULLED / took_s


def _beside_warm(readers: Readers, seconds: float, pulls: float) -> P99:
    given = counted(readers.address, _READ)
    with readers.reading(_WARM, 1, seconds + _UPLOADED_S, str(pulls)):
        _wait_more(readers.address, _READ, given + READERS * _PULLED)
        return _hot_p99(readers, seconds)


def _wait_more(address: str, figure: re.Pattern[str], wanted: int) -> None:
    """Until they read."""
    deadline = time.monotonic() + _UPLOADED_S
    while counted(address, figure) < wanted:
        if time.monotonic() > deadline:
            raise RuntimeError("the readers do not read")
        time.sleep(_LOOK_S)


def _hot_p99(readers: Readers, seconds: float) -> P99:
    """Of one pull after the other, with a pause between."""
    took_ns: list[int] = []
    running_ns: list[int] = []
    fields = pull_fields(_HOT, 0, 0)
    with SocketConnection(readers.address) as master:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            waited_ns, began_ns = _waited_ns(readers.broker_pid), time.perf_counter_ns()
            master.call(codes.PULL_MESSAGE, fields, timeout_ms=30_000)
            took_ns.append(time.perf_counter_ns() - began_ns)
            running_ns.append(took_ns[-1] - (_waited_ns(readers.broker_pid) - waited_ns))
            time.sleep(0.001)
    return P99(*(statistics.quantiles(each, n=100)[-1] / 1000 for each in (took_ns, running_ns)))


def _waited_ns(broker_pid: int) -> int:
    """How long the threads of the broker's event loop and of this process were ready, and no processor was there for them."""
    return sum(
        int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_bytes().split()[1]) for pid in (broker_pid, os.getpid())
    )


# ---- the reading side alone


class Late:
    """An object store whose answers take their time."""

    def __init__(self, objects: Backend) -> None:
        self.requests = 0
        self._objects = objects

    async def get(self, name: str, start: int, length: int) -> bytes:
        self.requests += 1
        await asyncio.sleep(LATENCY_S)
        return await self._objects.get(name, start, length)

    def read_in_thread(self, _work: Callable[[Read], Any]) -> None:
        """Gets are requests."""


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def late_reads(directory: Path, megabytes: int) -> tuple[float, float, int]:
    """Bytes a second, seconds of CPU time for a GB, and how many requests the first message needed."""
    objects = open_backend(TierSettings(url=f"file://{directory}"), "bench")
    queues = {Queue(TOPIC, number): QueueSegments() for number in range(READERS)}
    for queue, segments in queues.items():
        await _fill(objects, queue, segments, megabytes * 1_000_000 // READERS)
    running: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()

    def spawn(work: Coroutine[Any, Any, None], _what: str) -> None:
        task = loop.create_task(work)
        running.add(task)
        task.add_done_callback(running.discard)

    late = Late(objects)
    settings = TierSettings()
    aside, wall_ms = HelperThreads(2, "helper").run, lambda: time.time_ns() // 1_000_000
    around: Any = Loop(loop, spawn, _pause, wall_ms, aside, Clocks(time.perf_counter, time.thread_time))  # type: ignore[arg-type]
    store: Any = late
    limits = settings.cache_bytes, settings.fetches_in_flight
    cold = ColdReads(store, queues.__getitem__, around, *limits, first_astray_in_c(load()))
    news: dict[Queue, asyncio.Event] = {queue: asyncio.Event() for queue in queues}
    cold.listeners.append(lambda topic, queue_id: news[Queue(topic, queue_id)].set())
    first: deque[int] = deque(maxlen=1)
    total = 0

    async def read_all(queue: Queue) -> None:
        nonlocal total
        offset, end = 0, queues[queue].end
        while offset < end:
            news[queue].clear()
            found = cold.read_joined(*queue, offset, end, _READ_MESSAGES, _READ_BYTES)
            if found.is_coming:
                await news[queue].wait()
                continue
            offset = found.next_offset
            total += len(found.body)
            await asyncio.sleep(0)

    async def read_first(queue: Queue) -> None:
        while cold.read_joined(*queue, 0, 1, 1, _READ_BYTES).is_coming:
            await news[queue].wait()
        first.append(late.requests)

    await read_first(Queue(TOPIC, 0))
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    await asyncio.gather(*map(read_all, queues))
    took_s, used_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    while running:
        await asyncio.sleep(0.01)
    return total / took_s, used_s / total * 1e9, first[0]


async def _fill(objects: Backend, queue: Queue, segments: QueueSegments, size: int) -> None:
    """Segments as an uploader makes them."""
    while segments.message_end < size:
        first, base = segments.end, segments.message_end
        records = [_record(queue, first + number) for number in range(_SEGMENT_MESSAGES)]
        places = list(accumulate(map(len, records[:-1]), initial=base))
        content = b"".join(records)
        entries = b"".join(UNIT.pack(place, len(record), 0) for place, record in zip(places, records, strict=True))
        crcs = crc32(content), crc32(entries)
        sizes = len(content), len(content)
        segment = Segment(first, first + len(records), base, *sizes, 1, 1, base + len(content), 1, 1 + first, *crcs)
        await objects.put(segment.messages_name(*queue), content)
        await objects.put(segment.entries_name(*queue), entries)
        segments.add(segment)


def _record(queue: Queue, queue_offset: int) -> bytes:
    return encode_record(
        topic=queue.topic.encode(),
        queue_id=queue.queue_id,
        queue_offset=queue_offset,
        physical_offset=queue_offset * _BODY_BYTES,
        body=bytes(_BODY_BYTES),
        properties=b"",
        born_timestamp_ms=1,
        born_host=bytes(8),
        store_timestamp_ms=1,
        store_host=bytes(8),
    )


def late(megabytes: int, times: int) -> list[Row]:
    """The rows of the reading side alone; the rate is the median."""
    found = []
    for _ in range(times):
        directory = Path(tempfile.mkdtemp(prefix="bench"))
        try:
            found.append(asyncio.run(late_reads(directory, megabytes)))
        finally:
            shutil.rmtree(directory)
        print(
            f"cold reads, each request 20 ms late: {found[-1][0] / 1e6:.0f} MB/s, {found[-1][1]:.2f} s of CPU a GB",
            flush=True,
        )
    rate, cpu_s = statistics.median(each[0] for each in found), statistics.median(each[1] for each in found)
    most = max(each[2] for each in found)
    return [
        Row(
            f"cold reads of {READERS} readers, each request 20 ms late",
            f"{rate / 1e6:.0f} MB/s, {cpu_s:.2f} s of CPU a GB",
            f">= {BYTES_PER_S / 1e6:.0f} MB/s",
            rate >= BYTES_PER_S,
        ),
        Row("requests until the first cold message", str(most), f"<= {FIRST_REQUESTS}", most <= FIRST_REQUESTS),
    ]


def in_tier(program: Path, messages: int) -> list[Row]:
    """The rows of `tier_timers.py`."""
    with tier() as settings:
        return timers(program, messages, settings)


def run(pairs: int, seconds: float, megabytes: int, only: str = "") -> list[Row]:
    """All rows whose name contains `only`."""
    with load_program() as program:
        choices: dict[str, Callable[[], list[Row]]] = {
            "sends": lambda: [sends(program, pairs, seconds, 0)],
            "batches": lambda: [sends(program, pairs, seconds, 32)],
            "hot": lambda: hot(program, pairs, seconds, 1000 * megabytes),
            "reads": lambda: [reads(program, pairs, 1000 * megabytes).row],
            "late": lambda: late(megabytes, pairs),
            "timers": lambda: in_tier(program, 150 * megabytes),
        }
        return [row for name, rows in choices.items() if only in name for row in rows()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument(
        "--megabytes", type=int, default=200, help="of messages that are read; a fifth of it are timers"
    )
    parser.add_argument("--only", default="", help="sends, batches, hot, reads, late or timers")
    options = parser.parse_args()
    for row in run(options.pairs, options.seconds, options.megabytes, options.only):
        print(row)


if __name__ == "__main__":
    main()
