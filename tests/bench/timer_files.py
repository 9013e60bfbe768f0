"""What the timer files take for many pending timers: time, memory, and disk.

    python -m tests.bench.timer_files [--timers N] [--busy N] [--directory DIR]

Timers go straight into the file layer, from a queue that is computed, in a process that does nothing else: due at random
within two days, and a part of them in one second. Then the process ends without a clean end, another one starts with the files,
and reads what is due first, what is due in the busy second, and what the log has to keep. Each phase is a process of its own,
so that its memory is its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from brokerd.store.unit import Unit
from brokerd.timers.codes import MESSAGE, Key, encode_code, key_of
from brokerd.timers.done import Done
from brokerd.timers.files.source import Delivered, Origin
from brokerd.timers.files.timer_files import TimerFiles
from remoting.disk import LocalDisk
from tests.bench.processes import memory_of

GOAL_MB: Final = 100
GOAL_START_S: Final = 10

_WINDOW_MS: Final = 2 * 86_400_000
_NOW_MS: Final = 1_800_000_000_000
_BUSY_MS: Final = _NOW_MS + 3_600_000
_RECORD_BYTES: Final = 300
_ORIGIN: Final = Origin(12345, _NOW_MS, False)
_CHECKPOINT_RECORDS: Final = 1 << 17
_KNUTH: Final = 2_654_435_761  # spreads the numbers over the window


class ComputedQueue:
    """`TimerSource` of timers that nobody stored."""

    def __init__(self, timers: int, busy: int) -> None:
        self._timers = timers
        self._busy = busy

    def code(self, offset: int) -> int:
        spread = offset * _KNUTH % (1 << 32)
        if offset >= self._timers - self._busy:
            return encode_code(_BUSY_MS + 1 + spread % 1000, MESSAGE)
        return encode_code(_NOW_MS + 1 + spread * _WINDOW_MS // (1 << 32), MESSAGE)

    def log_range(self) -> tuple[int, int]:
        return 0, self._timers * _RECORD_BYTES

    def queue_range(self) -> tuple[int, int]:
        return 0, self._timers

    def units(self, first: int, count: int) -> Sequence[Unit]:
        end = min(first + count, self._timers)
        return [(offset * _RECORD_BYTES, _RECORD_BYTES, self.code(offset)) for offset in range(first, end)]

    known_units = units

    def delivered(self) -> Delivered:
        return Delivered(Done(Key(_NOW_MS, -1)), 0)

    def origin(self, physical_offset: int, size: int) -> Origin:
        return _ORIGIN


def _open(directory: Path, queue: ComputedQueue) -> TimerFiles:
    return TimerFiles(LocalDisk(directory), queue)


def _write(files: TimerFiles) -> None:
    write = files.begin_write(closing=True)
    if write is not None:
        write.run()
        files.finish_write(write)


def _insert(directory: Path, queue: ComputedQueue) -> None:
    files = _open(directory, queue)
    files.load(known=True, clean=True)
    _, end = queue.log_range()
    began_s, cpu_s, written = time.monotonic(), time.process_time(), 0
    while files.take(end, 1 << 18):
        if files.applied - written >= _CHECKPOINT_RECORDS:
            _write(files)
            written = files.applied
    _write(files)
    took_s, used_s = time.monotonic() - began_s, time.process_time() - cpu_s
    _say(
        f"{files.applied:,} timers inserted", f"{took_s:.1f} s, {used_s / files.applied * 1e6:.1f} us of processor each"
    )


def _start(directory: Path, queue: ComputedQueue) -> None:
    began_s, cpu_s = time.monotonic(), time.process_time()
    files = _open(directory, queue)
    files.load(known=True, clean=False)
    files.step()
    took_s, used_s = time.monotonic() - began_s, time.process_time() - cpu_s
    assert not files.times_begun_again, "the files are not taken over"
    _say(
        "start after an unclean end",
        f"{took_s:.2f} s, {used_s:.2f} s of processor (goal {GOAL_START_S} s), {files.pending_messages:,} wait",
    )
    _ask(files, "due within the first minute", Key(_NOW_MS, -1), _NOW_MS + 60_000)
    _ask(files, "due in the busy second", Key(_BUSY_MS, 1 << 40), _BUSY_MS + 1_001)
    began_s = time.monotonic()
    held = files.held_queue_offset(Done(Key(_NOW_MS, -1)))
    _say(f"what is held: from {held:,} on", f"{(time.monotonic() - began_s) * 1000:.1f} ms")


def _ask(files: TimerFiles, what: str, after: Key, until_ms: int) -> None:
    count, turns, longest_s, cpu_s = 0, 0, 0.0, time.process_time()
    while True:
        began_s = time.process_time()
        found = files.between(after, until_ms, 10_000)
        longest_s = max(longest_s, time.process_time() - began_s)
        turns += 1
        if found is None:
            continue
        count += len(found)
        if len(found) < 10_000:
            break
        after = key_of(*found[-1])
    used_s = time.process_time() - cpu_s
    each_us = used_s / max(1, count) * 1e6
    _say(
        f"{count:,} {what}", f"{each_us:.1f} us of processor each, {turns} turns, the longest {longest_s * 1000:.0f} ms"
    )


def _say(what: str, figure: str) -> None:
    now = memory_of(multiprocessing.current_process().pid or 0)
    most_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:48} {figure}; resident {now.resident_mb:.0f} MB, at most {most_mb:.0f} (goal {GOAL_MB})", flush=True)


def _in_a_process(phase: Callable[[Path, ComputedQueue], None], directory: Path, queue: ComputedQueue) -> None:
    process = multiprocessing.get_context("spawn").Process(target=phase, args=(directory, queue))
    process.start()
    process.join()
    assert not process.exitcode, "the phase failed"


def run(timers: int, busy: int, directory: Path) -> None:
    """Insert, then start."""
    queue = ComputedQueue(timers, busy)
    _in_a_process(_insert, directory, queue)
    _in_a_process(_start, directory, queue)
    size = sum(each.stat().st_blocks * 512 for each in directory.rglob("*") if each.is_file())
    print(f"on disk: {size / 1e6:.0f} MB, {size / timers:.0f} bytes a timer", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, default=10_000_000)
    parser.add_argument("--busy", type=int, default=1_000_000, help="how many of them are due in one second")
    parser.add_argument("--directory", type=Path, help="where the files are made; a temporary one by default")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="timers", dir=given.directory))
    try:
        run(given.timers, given.busy, directory)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
