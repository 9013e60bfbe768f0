"""The life of one process under the supervisor: its states, counted restarts, back-off (pure)

    STARTING --ready--> RUNNING
    STARTING, RUNNING --exited--> BACKING_OFF --spawned--> STARTING
    STARTING, RUNNING, BACKING_OFF --stop--> (exited) STOPPED
    WAITING, BACKING_OFF --unspawned--> BACKING_OFF      the system lacks something (memory, descriptors) at this moment
    WAITING, BACKING_OFF --unstartable--> FAILED         the program cannot be executed; trying again would not help
    STARTING, RUNNING --retired--> RETIRED               it said that it is not needed any more
    any but FAILED and RETIRED --held--> HELD --spawned--> STARTING      somebody switched it off, and on again

The delay doubles from exit to exit; a process that lived long enough starts again from the shortest delay.
Owned by the supervisor's task for that process alone.
"""

from __future__ import annotations

import signal
from enum import StrEnum

FIRST_DELAY_MS = 200
LONGEST_DELAY_MS = 10_000
SETTLED_AFTER_MS = 30_000


class State(StrEnum):
    """What a person is shown."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing-off"
    STOPPED = "stopped"
    FAILED = "failed"
    RETIRED = "retired"
    HELD = "held"


def exit_text(code: int) -> str:
    """How a process ended, for a sentence: "the process ..."; the code is negative for a signal, as subprocess has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Lifecycle:
    """One process's state; times are monotonic milliseconds."""

    def __init__(self) -> None:
        self.state = State.WAITING
        self.pid: int | None = None
        self.restarts = 0
        self.last_exit: int | None = None
        self._spawned_ms: int | None = None
        self._delay_ms = FIRST_DELAY_MS

    def spawned(self, pid: int, now_ms: int) -> None:
        """The process exists; it is not ready yet."""
        assert self.state in (State.WAITING, State.BACKING_OFF, State.HELD), self.state
        if self._spawned_ms is not None:
            self.restarts += 1
        self.state = State.STARTING
        self.pid = pid
        self._spawned_ms = now_ms

    def ready(self) -> None:
        """Its probe succeeded."""
        assert self.state is State.STARTING, self.state
        self.state = State.RUNNING

    def exited(self, code: int, now_ms: int) -> int:
        """The process ended by itself; return after how many milliseconds to start it again."""
        assert self.state in (State.STARTING, State.RUNNING), self.state
        assert self._spawned_ms is not None
        if now_ms - self._spawned_ms >= SETTLED_AFTER_MS:
            self._delay_ms = FIRST_DELAY_MS
        self._ended(code, State.BACKING_OFF)
        return self._next_delay_ms()

    def retired(self, code: int) -> None:
        """The process ended and is not to be started again: its part in the cluster is over."""
        assert self.state in (State.STARTING, State.RUNNING), self.state
        self._ended(code, State.RETIRED)

    def held(self, code: int | None) -> None:
        """It is switched off: ended because it was told to, or did not run. What comes later is a new beginning."""
        assert self.state not in (State.FAILED, State.RETIRED), self.state
        if code is None:
            assert self.pid is None, self.pid
            self.state = State.HELD
        else:
            self._ended(code, State.HELD)
        self._spawned_ms = None
        self._delay_ms = FIRST_DELAY_MS

    def unspawned(self) -> int:
        """The system could not start it just now; return after how many milliseconds to try again."""
        assert self.state in (State.WAITING, State.BACKING_OFF, State.HELD), self.state
        self.state = State.BACKING_OFF
        return self._next_delay_ms()

    def stopped(self, code: int | None) -> None:
        """It ended because it was told to, or it was not running when everything was told to stop."""
        if code is None:
            assert self.pid is None, self.pid
            if self.state not in (State.FAILED, State.RETIRED):
                self.state = State.STOPPED
        else:
            self._ended(code, State.STOPPED)

    def unstartable(self) -> None:
        """The operating system refuses to execute the program."""
        assert self.pid is None, self.pid
        self.state = State.FAILED

    def _next_delay_ms(self) -> int:
        delay_ms = self._delay_ms
        self._delay_ms = min(2 * delay_ms, LONGEST_DELAY_MS)
        return delay_ms

    def _ended(self, code: int, state: State) -> None:
        self.state = state
        self.pid = None
        self.last_exit = code
