"""The native library's tests with a build that ends the process at an access out of bounds or an undefined operation.

    python -m tests.sanitized [pytest's options]

The build has AddressSanitizer and UndefinedBehaviorSanitizer; Python's own memory comes from `malloc`, so that the bounds of its
objects are watched, too. Without a compiler that has both there is nothing to do, which is said.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from brokerd.native.building import FLAGS, CannotBuild, compile_to, find_compiler, source_dir
from tests.support.native_library import NAMED_BY

_FLAGS = (*FLAGS, "-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_TESTS = (
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
    "tests/unit/brokerd/processors/test_quick_pulls.py",
    "tests/unit/brokerd/processors/test_stays.py",
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
_ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="sanitized") as directory:
        library = Path(directory) / "library.so"
        try:
            compiler = find_compiler()
            compile_to(library, compiler, source_dir(), _FLAGS)
            runtime = _runtime_of(compiler)
        except CannotBuild as error:
            print(f"skipped: {error}")
            return 0
        environ = os.environ | {
            NAMED_BY: str(library),
            "LD_PRELOAD": runtime,  # it has to come before all that allocates
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",  # Python leaves much to the end of the process
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        command = [sys.executable, "-m", "pytest", *_TESTS, *sys.argv[1:]]
        return subprocess.run(command, cwd=_ROOT, env=environ, check=False).returncode


def _runtime_of(compiler: str) -> str:
    """The run-time library of AddressSanitizer that goes with the compiler. Raises CannotBuild."""
    done = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=10, check=False
    )
    path = Path(done.stdout.strip())
    if not path.is_absolute():
        raise CannotBuild(f"{compiler} has no libasan.so")
    return str(path.resolve())


if __name__ == "__main__":
    sys.exit(main())
