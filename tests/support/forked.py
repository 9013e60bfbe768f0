"""Daemons that need not import their program at each start: a process that has imported it once makes copies of itself.

To import a broker costs most of a second of a processor, and Django with a web server or Celery more; the tests start some
hundreds of daemons. So each test process has one helper for each program, which imports it, reads requests from its standard
input, and forks. A copy goes on as the program would: with a session, a log, signals and a working directory of its own. Daemons
are started just as people start them in the tests of the appliance and in `make chaos`.

As a program (`python -m tests.support.forked MODULE`) this is the helper; when its input ends, it kills what still runs.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.chaos.namespaces import enter

PROGRAMS = ("brokerd", "controllerd")


class Forked:
    """A copy that runs a program; it is asked as a `subprocess.Popen` is."""

    def __init__(self, pid: int, helper: _Helper) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._helper = helper
        self._looking = threading.Lock()
        self._ended = os.pidfd_open(pid)  # until the helper has reaped it, no other process has its number

    def poll(self) -> int | None:
        """The exit code, negative the signal that ended it; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float) -> int:
        """The exit code, when it has ended. Raises TimeoutExpired when it does not within so many seconds."""
        code = self._look(round(timeout * 1000))
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def _look(self, timeout_ms: int) -> int | None:
        with self._looking:  # it is reaped once, whoever finds its end
            if self.returncode is None:
                ending = select.poll()
                ending.register(self._ended, select.POLLIN)
                if ending.poll(timeout_ms):
                    self.returncode = self._helper.ask(reap=self.pid)
                    os.close(self._ended)
            return self.returncode


def fork(
    module: str,
    arguments: Sequence[str],
    directory: Path,
    log: Path,
    namespace: str = "",
    environment: Mapping[str, str] | None = None,
) -> Forked:
    """Run the `main` of this module with these arguments, in a network namespace if one is named; its words go to the log.

    `environment` is all that it finds there, also while it is imported; without it that is what this process finds.
    """
    helper = _helper(module, None if environment is None else frozenset(environment.items()))
    return Forked(helper.ask(start=[str(log), str(directory), namespace, *arguments]), helper)


class _Helper:
    def __init__(self, module: str, environment: Mapping[str, str] | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, module],
            cwd=Path(__file__).resolve().parents[2],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a keyboard's interrupt is for the tests, which then end it
        )
        self._asking = threading.Lock()

    def ask(self, **request: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@cache
def _helper(module: str, environment: frozenset[tuple[str, str]] | None) -> _Helper:
    helper = _Helper(module, None if environment is None else dict(environment))
    atexit.register(helper.close)
    return helper


def _serve(module: str) -> int:
    """Fork and reap as asked. In a copy this returns the exit code of its program."""
    main = importlib.import_module(module).main
    gc.collect()
    gc.freeze()  # a copy's collector looks at its own things only, and leaves these pages shared
    running = set()
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        if "start" in request:
            log, directory, namespace, *arguments = request["start"]
            pid = os.fork()
            if pid == 0:
                _settle_in(log, directory)
                if namespace:
                    enter(namespace)
                sys.argv[:] = [module, *arguments]
                return int(main())
            running.add(pid)
            answer = pid
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
            running.discard(request["reap"])
        os.write(1, b"%d\n" % answer)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return 0


def _settle_in(log: str, directory: str) -> None:
    os.setsid()
    os.chdir(directory)
    nothing, saying = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(nothing, 0)
    os.dup2(saying, 1)
    os.dup2(saying, 2)
    os.close(nothing)
    os.close(saying)


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
