"""What `up` tells the person who started it: one line per event, plain text, nothing that only a terminal understands."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from webapp.appliance.lifecycle import LONGEST_DELAY_MS


class Terminal:
    """Lines about the processes, which the supervisor has written, and `say` for everything else."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: TextIO | None = sys.stdout if stream is None else stream
        self._began = time.monotonic()
        self._last_words: dict[str, str] = {}
        self._hopeless: set[str] = set()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, text: str = "") -> None:
        """Write a line; a reader that went away is no reason to stop a cluster."""
        if self._stream is None:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._stream = None

    def step(self, text: str) -> None:
        """Write a line of progress, with the time since the start."""
        self.say(f"[{self.elapsed_s:6.1f} s] {text}")

    def ready(self, name: str, restarts: int) -> None:
        """A process became ready."""
        self._hopeless.discard(name)
        self._last_words.pop(name, None)
        self.step(f"{name} is ready" if restarts == 0 else f"{name} is ready again (restart {restarts})")

    def exited(self, name: str, how: str, last_words: str | None, restart_in_ms: int) -> None:
        """A process ended by itself and will be started again; told until its restarts are as rare as they get."""
        if name in self._hopeless:
            return
        if restart_in_ms >= LONGEST_DELAY_MS:
            self._hopeless.add(name)
            self.step(f"{name} {how}; from now on it is tried every {restart_in_ms / 1000:g} s")
        else:
            self.step(f"{name} {how}; starting it again in {restart_in_ms / 1000:g} s")
        if last_words and last_words != self._last_words.get(name) and not how.startswith("was killed"):
            self.say(f"           it last said: {last_words}")
            self._last_words[name] = last_words

    def unstartable(self, name: str, reason: str) -> None:
        """A process cannot be started at all."""
        self.step(f"{name} {reason}; it stays down")

    def retired(self, name: str, last_words: str | None) -> None:
        """A process ended because it is not needed any more, and is not started again."""
        self.step(f"{name} is not needed any more and stays down")
        if last_words:
            self.say(f"           it last said: {last_words}")
