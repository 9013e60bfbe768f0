"""The native library's tests with a build that watches what it does.

    python -m tests.sanitized [--threads] [pytest's options]

The build has AddressSanitizer and UndefinedBehaviorSanitizer: it ends the process at an access out of bounds or an undefined
operation. Python's own memory comes from `malloc`, so that the bounds of its objects are watched, too.

With `--threads` it has ThreadSanitizer, which reports two accesses to one place that nothing orders, one of them a write, also
when they did no harm. It is for the tests in which several threads are in the library; brokers that they start have that library,
too. Reports are told at the end; one is enough to fail. `--mutants` breaks the order of accesses on purpose, in one way after
the other: each has to be reported.

Python is not compiled with it. Its threads, locks and semaphores are known, and what it reads or writes by a call, as by `memcpy`
or `recv`, is seen; so is memory that it frees. A number that it reads by itself is not: `lane.h` says which that may be. What
sockets and eventfds bring counts as no order, as the library promises one without them.

Without a compiler that has these there is nothing to do, which is said.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from brokerd.native.building import FLAGS, CannotBuild, compile_to, file_name, find_compiler, source_dir
from tests.support.native_library import NAMED_BY

_ROOT: Final = Path(__file__).resolve().parents[1]
_THREADS_MODE: Final = "--threads"
_MUTANTS_MODE: Final = "--mutants"
_MODES: Final = (_THREADS_MODE, _MUTANTS_MODE)
_FLAGS: Final = ("-g", "-O1", "-fno-omit-frame-pointer")
_BOUNDS_TESTS: Final = (
    "tests/unit/brokerd/native/test_again.py",
    "tests/unit/brokerd/native/test_answers.py",
    "tests/unit/brokerd/native/test_carrier.py",
    "tests/unit/brokerd/native/test_crc.py",
    "tests/unit/brokerd/native/test_grpc_sends.py",
    "tests/unit/brokerd/native/test_hpack.py",
    "tests/unit/brokerd/native/test_keys.py",
    "tests/unit/brokerd/native/test_lane.py",
    "tests/unit/brokerd/native/test_lane_waits.py",
    "tests/unit/brokerd/native/test_pulls.py",
    "tests/unit/brokerd/native/test_reads.py",
    "tests/unit/brokerd/native/test_runs.py",
    "tests/unit/brokerd/native/test_due.py",
    "tests/unit/brokerd/native/test_timer_codes.py",
    "tests/unit/brokerd/native/test_timer_notes.py",
    "tests/unit/brokerd/native/test_walk.py",
    "tests/unit/brokerd/processors/test_given_pulls.py",
    "tests/unit/brokerd/processors/test_lent_for_disk.py",
    "tests/unit/brokerd/processors/test_lent_model.py",
    "tests/unit/brokerd/processors/test_lent_sends.py",
    "tests/unit/brokerd/processors/test_put_times.py",
    "tests/unit/brokerd/processors/test_quick_pulls.py",
    "tests/unit/brokerd/processors/test_stays.py",
    "tests/unit/brokerd/processors/test_stays_kinds.py",
    "tests/unit/brokerd/processors/test_stays_model.py",
    "tests/unit/brokerd/processors/test_stays_rounds.py",
    "tests/unit/brokerd/processors/test_tagged_stays.py",
    "tests/unit/brokerd/sending/test_native_kernel.py",
    "tests/unit/brokerd/sending/test_native_numbers.py",
    "tests/unit/brokerd/sending/test_native_signed.py",
    "tests/unit/brokerd/sending/test_readings.py",
    "tests/unit/brokerd/sending/test_record_areas.py",
    "tests/unit/brokerd/sending/test_stored_form.py",
    "tests/unit/brokerd/sending/test_timed_kernel.py",
    "tests/unit/brokerd/store/index/test_native_items.py",
    "tests/unit/brokerd/store/test_native_tails.py",
    "tests/unit/brokerd/store/test_native_writes.py",
    "tests/unit/brokerd/store/test_sight.py",
    "tests/unit/brokerd/store/test_syncs_in_c.py",
)
_THREADS_TESTS: Final = (
    "tests/unit/brokerd/native/test_carrier.py",
    "tests/unit/brokerd/native/test_lane.py",
    "tests/unit/brokerd/native/test_lane_waits.py",
    "tests/unit/brokerd/processors/test_given_pulls.py",
    "tests/unit/brokerd/processors/test_lent_for_disk.py",
    "tests/unit/brokerd/processors/test_lent_sends.py",
    "tests/unit/brokerd/processors/test_older_files.py",
    "tests/unit/brokerd/processors/test_put_times.py",
    "tests/unit/brokerd/processors/test_quick_pulls.py",
    "tests/unit/brokerd/processors/test_stays.py",
    "tests/unit/brokerd/processors/test_stays_kinds.py",
    "tests/unit/brokerd/processors/test_stays_model.py",
    "tests/unit/brokerd/processors/test_stays_rounds.py",
    "tests/unit/brokerd/processors/test_tagged_stays.py",
    "tests/unit/brokerd/store/index/test_native_items.py",
    "tests/unit/brokerd/store/test_native_reads.py",
    "tests/unit/brokerd/store/test_native_writes.py",
    "tests/unit/brokerd/store/test_syncs_in_c.py",
    "tests/integration/test_carried_offsets.py",
    "tests/integration/test_kernel_modes.py",
)


class Build(NamedTuple):
    """A way to watch the library: what the compiler is told, its run-time library and that one's options, where `log` is the
    begin of files' names for what it reports; what the tests are started by, and which ones."""

    flags: Sequence[str]
    runtime: str
    options: Mapping[str, str]
    starter: Sequence[str]
    tests: Sequence[str]


_BOUNDS: Final = Build(
    ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "libasan.so",
    {
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",  # Python leaves much to the end of the process
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
    (),
    _BOUNDS_TESTS,
)
_THREADS: Final = Build(
    ("-fsanitize=thread",),
    "libtsan.so",
    {
        # A daemon's exit code stays its own; a process forks that has threads
        "TSAN_OPTIONS": "log_path={log}:exitcode=0:io_sync=0:history_size=7:die_after_fork=0:atexit_sleep_ms=0"
    },
    ("setarch", "--addr-no-randomize"),  # its shadow of memory needs places that are laid out as it knows them
    _THREADS_TESTS,
)


class Mutant(NamedTuple):
    """What a source says, what it says instead, and the tests in which that is to be reported."""

    name: str
    source: str
    says: str
    instead: str
    test: str


_MUTANTS: Final = (
    Mutant(
        "the end of a sync is told without an order",
        "syncs.c",
        "atomic_store(&syncs->done, end);\n        if",
        "*(int64_t *)&syncs->done = end;\n        if",
        "tests/unit/brokerd/store/test_syncs_in_c.py::test_each_request_is_answered_by_syncs_that_need_no_interpreter",
    ),
    Mutant(
        "a piece is done before all see what was written of it",
        "carrier.c",
        "atomic_store(&carrier->done, ++done);",
        "atomic_store_explicit(&carrier->done, ++done, memory_order_relaxed);",
        "tests/unit/brokerd/native/test_carrier.py::test_each_gets_its_own_in_order",
    ),
    Mutant(
        "who takes the lane back does not wait for the thread at work",
        "lane.c",
        "if (begin_ns > lane->until_ns || lane->is_full",
        "atomic_store(&lane->whose, LENT);\n    if (begin_ns > lane->until_ns || lane->is_full",
        "tests/unit/brokerd/native/test_lane.py::test_recalls_at_any_time_lose_nothing",
    ),
    Mutant(
        "what a sender had taken is counted without an order",
        "lane.c",
        "atomic_fetch_add(&sender->sent.frames, progress->frames);",
        "*(int64_t *)&sender->sent.frames += progress->frames;",
        "tests/unit/brokerd/native/test_lane.py::test_who_sends_stays_until_he_sends_no_more",
    ),
)


def main() -> int:
    modes, options = (
        [each for each in sys.argv[1:] if each in _MODES],
        [each for each in sys.argv[1:] if each not in _MODES],
    )
    try:
        if _MUTANTS_MODE in modes:
            return _find_mutants(options)
        build = _THREADS if _THREADS_MODE in modes else _BOUNDS
        code, reports = _run(build, source_dir(), [*build.tests, *options])
    except CannotBuild as error:
        print(f"skipped: {error}")
        return 0
    print(*reports, *_counted(reports), sep="\n")
    return code or bool(reports)


def _find_mutants(options: Sequence[str]) -> int:
    """Whether each is reported. Raises CannotBuild."""
    missed = 0
    for mutant in _MUTANTS:
        with tempfile.TemporaryDirectory(prefix="mutant") as directory:
            sources = Path(directory) / "native"
            shutil.copytree(source_dir(), sources)
            source = sources / mutant.source
            text = source.read_text()
            assert text.count(mutant.says) == 1, f"{mutant.source} does not say {mutant.says!r} once"
            source.write_text(text.replace(mutant.says, mutant.instead))
            _, reports = _run(_THREADS, sources, [mutant.test, *options])  # its tests may fail, too
        missed += not reports
        print(f"{mutant.name}: {'reported' if reports else 'MISSED'}", *_counted(reports), sep="\n  ", flush=True)
    return int(missed > 0)


def _run(build: Build, sources: Path, arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Run pytest with the library that is made of the sources: its exit code, and what was reported. Raises CannotBuild."""
    with tempfile.TemporaryDirectory(prefix="sanitized") as directory:
        compiler = find_compiler()
        # Where brokers look for it
        library = Path(directory) / "logboom" / "native" / file_name(compiler, source_dir())
        library.parent.mkdir(parents=True)
        compile_to(library, compiler, sources, (*FLAGS, *_FLAGS, *build.flags))
        environ = os.environ | {
            NAMED_BY: str(library),
            "XDG_CACHE_HOME": directory,
            "LD_PRELOAD": _runtime_of(compiler, build.runtime),  # it has to come before all that allocates
            "PYTHONMALLOC": "malloc",
        }
        reports = Path(directory) / "reports"
        reports.mkdir()
        environ |= {name: options.format(log=reports / "of") for name, options in build.options.items()}
        command = [*build.starter, sys.executable, "-m", "pytest", *arguments]
        code = subprocess.run(command, cwd=_ROOT, env=environ, check=False).returncode
        return code, [each.read_text(errors="replace") for each in sorted(reports.iterdir())]


def _counted(reports: Sequence[str]) -> list[str]:
    """What was reported, in short, and by how many processes."""
    found = Counter(line for each in reports for line in set(re.findall(r"^SUMMARY: (.*)", each, re.MULTILINE)))
    return [f"{count} x {line}" for line, count in found.most_common()]


def _runtime_of(compiler: str, name: str) -> str:
    """The run-time library that goes with the compiler. Raises CannotBuild."""
    done = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, timeout=10, check=False
    )
    path = Path(done.stdout.strip())
    if not path.is_absolute():
        raise CannotBuild(f"{compiler} has no {name}")
    return str(path.resolve())


if __name__ == "__main__":
    sys.exit(main())
