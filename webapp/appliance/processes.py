"""One child process of the supervisor: starting, signalling, and the certainty that nothing of it is left.

Every child leads a session of its own, so a Ctrl-C in the terminal reaches the supervisor alone and a signal to the group
reaches grandchildren too (Celery's pool, Spark's JVM). The kernel kills a child when the supervisor dies, however it dies.
What is left of the group is killed before the child is reaped: until then its process id cannot belong to somebody else.
Output goes straight into a file, so a stopped supervisor never makes a child wait on a full pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """A started process of the running event loop."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._loop = asyncio.get_running_loop()
        self._exit_code: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._ended)

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group and session."""
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether it has ended and been reaped."""
        return self._exit_code.done()

    async def wait(self) -> int:
        """Wait until it has ended and been reaped; any number may wait, and giving up disturbs nobody."""
        return await asyncio.shield(self._exit_code)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, if it still runs."""
        if not self.has_exited:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and all that it started, at once."""
        if not self.has_exited:
            self._kill_group()

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._kill_group()
        self._exit_code.set_result(self._process.wait())

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def spawn(argv: Sequence[str], env: Mapping[str, str], working_dir: Path, log_file: Path) -> Child:
    """Start a child of the running event loop; raises OSError when the program cannot be executed."""
    with open(log_file, "ab") as log:
        return Child(
            subprocess.Popen(
                argv,
                env=env,
                cwd=working_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=dying_with_this_process(),
            )
        )


def dying_with_this_process() -> Callable[[], None]:
    """What a child does before it executes its program, so that the kernel kills it when this process dies."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died in between; nobody would ever tell this child
            os._exit(1)

    return before_exec
