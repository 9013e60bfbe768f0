"""When our Spark Connect server is started, stopped and replaced (pure)

    STOPPED --somebody wants it--> STARTING --it listens--> READY --idle, worn or unhealthy--> STOPPING --exited--> STOPPED

A server is started when the first lease is asked for and stopped when none was held for a while, so an appliance that runs no
report pays nothing for Spark. It is replaced between leases once it has served many sessions or grew: sessions leak processes
and memory in it. After a start that failed the next waits, longer each time.

The shell calls `decide` after each event and once in a while, and carries out the answer.
"""

from __future__ import annotations

from enum import StrEnum

START_TIMEOUT_MS = 180_000
STOP_TIMEOUT_MS = 4_000
# A server that writes down its classes as it ends, which is done once: soon after the first report, while nobody waits.
DRAFT_TIMEOUT_MS = 30_000
DRAFT_IDLE_MS = 60_000
MOST_SESSIONS = 20
MOST_LEASES = 500
FIRST_RETRY_MS = 1_000
LONGEST_RETRY_MS = 60_000
_AT_REST = "it starts when a report needs it"


class State(StrEnum):
    """What a person is shown, too."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Action(StrEnum):
    """What the shell must do."""

    NOTHING = "nothing"
    START = "start"
    STOP = "stop"
    KILL = "kill"


class Lifecycle:
    """One server at a time, without work at most `idle_stop_ms`; times are monotonic milliseconds."""

    def __init__(self, idle_stop_ms: int, most_memory_bytes: int) -> None:
        self.state = State.STOPPED
        self.detail = _AT_REST
        self.generation = 0
        self.leases = 0
        self._idle_stop_ms = idle_stop_ms
        self._most_memory_bytes = most_memory_bytes
        self._served = 0
        self._sessions = 0
        self._given_back = 0
        self._memory_bytes = 0
        self._worn: str | None = None
        self._broken = False
        self._drafts = False
        self._killed = ""  # why the shell killed the process
        self._since_ms = 0
        self._stop_timeout_ms = STOP_TIMEOUT_MS
        self._idle_since_ms = 0
        self._failures = 0
        self._retry_at_ms = 0

    @property
    def shown(self) -> tuple[str, str]:
        """State and detail for a person. A server is called ready when a query has succeeded, not when its port is open."""
        if self.state is State.READY and not self._sessions:
            return str(State.STARTING), "Spark listens; its first query is on its way"
        return str(self.state), self.detail

    @property
    def did_work(self) -> bool:
        """Whether somebody used this start of the server and is done."""
        return self._sessions > 0 and self._given_back > 0

    # ---- events

    def lease_opened(self) -> None:
        """A report wants Spark."""
        self.leases += 1
        self._served += 1

    def lease_closed(self, now_ms: int) -> None:
        """It does not need it any more."""
        assert self.leases > 0
        self.leases -= 1
        self._given_back += 1
        if self.leases == 0:
            self._idle_since_ms = now_ms

    def session_created(self) -> None:
        """A client made a new session; its first query succeeded, so the server really works."""
        self._sessions += 1
        self._failures = 0

    def found_unhealthy(self, why: str) -> None:
        """A client's query failed in a way that is the server's fault, or a client vanished and may have left things behind."""
        self._worn = self._worn or why

    def found_broken(self, why: str) -> None:
        """A client could not use it. If no other has, it does not work, and is replaced even while leases are held.

        While it works for somebody else, that one's report is worth more: then it is replaced when nobody holds a lease.
        """
        self._worn = why
        self._broken = self._broken or not (self._sessions and self.leases > 1)

    def measured(self, memory_bytes: int) -> None:
        """How much the server and its workers use."""
        self._memory_bytes = memory_bytes

    def started(self, now_ms: int, *, drafts: bool = False) -> None:
        """The process exists. `drafts`: it will write down its classes as it ends."""
        assert self.state is State.STOPPED, self.state
        self.generation += 1
        self._served = self.leases
        self._sessions = self._given_back = self._memory_bytes = 0
        self._worn, self._broken, self._drafts, self._killed = None, False, drafts, ""
        self._enter(State.STARTING, "Spark is starting", now_ms)

    def listening(self, now_ms: int) -> None:
        """It accepts connections."""
        assert self.state is State.STARTING, self.state
        self._idle_since_ms = now_ms
        self._enter(State.READY, "", now_ms)

    def stop_asked(self, why: str, now_ms: int) -> None:
        """The shell told the process to end."""
        self._stop_timeout_ms = DRAFT_TIMEOUT_MS if self._drafts and self.did_work else STOP_TIMEOUT_MS
        self._enter(State.STOPPING, why, now_ms)

    def kill_asked(self, why: str) -> None:
        """The shell kills the process, which did not start or stop in time."""
        self._killed = why

    def exited(self, how: str, now_ms: int) -> bool:
        """The process ended; True when nobody had asked it to, so that leases must be told."""
        unexpected = self.state is not State.STOPPING or self._broken
        if self.state is not State.STOPPING:
            why = f"Spark was killed: {self._killed}" if self._killed else f"Spark ended by itself: {how}"
            self.start_failed(why, now_ms)
        else:
            self._enter(State.STOPPED, _AT_REST, now_ms)
        return unexpected

    def start_failed(self, why: str, now_ms: int) -> None:
        """The process could not even be made."""
        self._failures += 1
        self._retry_at_ms = now_ms + min(FIRST_RETRY_MS * 2 ** (self._failures - 1), LONGEST_RETRY_MS)
        self._enter(State.STOPPED, why, now_ms)

    # ---- decisions

    def decide(self, now_ms: int) -> tuple[Action, str]:
        """What to do now, and why."""
        if self.state is State.STOPPED:
            wanted = self.leases > 0 and now_ms >= self._retry_at_ms
            return (Action.START, "a report needs it") if wanted else (Action.NOTHING, "")
        elapsed_ms = now_ms - self._since_ms
        if self.state is State.STARTING:
            why = f"it did not start within {START_TIMEOUT_MS // 1000} s" if elapsed_ms >= START_TIMEOUT_MS else ""
            return (Action.KILL, why) if why else (Action.NOTHING, "")
        if self.state is State.STOPPING:
            return (
                (Action.KILL, "it did not stop in time")
                if elapsed_ms >= self._stop_timeout_ms
                else (Action.NOTHING, "")
            )
        why = self._why_stop(now_ms)
        return (Action.STOP, why) if why else (Action.NOTHING, "")

    def next_look_ms(self, now_ms: int) -> int:
        """In how many milliseconds to decide again if nothing happens until then."""
        if self.state is State.STOPPED and self.leases:
            return max(10, self._retry_at_ms - now_ms)
        return 500 if self.state in (State.STARTING, State.STOPPING) else 5_000

    def _why_stop(self, now_ms: int) -> str:
        if self._broken:
            return self._worn or "it does not work"
        if self.leases:
            return ""
        if self._worn:
            return self._worn
        if self._sessions >= MOST_SESSIONS or self._served >= MOST_LEASES:
            return f"it is replaced after {self._sessions} sessions and {self._served} reports"
        if self._memory_bytes > self._most_memory_bytes:
            return f"it is replaced because it grew to {self._memory_bytes >> 20} MiB"
        idle_ms = now_ms - self._idle_since_ms
        if idle_ms >= self._idle_stop_ms:
            return "no report needed it for a while"
        if self._drafts and self.did_work and idle_ms >= DRAFT_IDLE_MS:
            return "it writes down what will make the next start short"
        return ""

    def _enter(self, state: State, detail: str, now_ms: int) -> None:
        self.state = state
        self.detail = detail
        self._since_ms = now_ms
