from __future__ import annotations

import io
import re

from webapp.appliance.lifecycle import LONGEST_DELAY_MS
from webapp.appliance.terminal import Terminal


def told(stream: io.StringIO) -> list[str]:
    return [re.sub(r"^\[ *\d+\.\d s\] ", "", line) for line in stream.getvalue().splitlines()]


def test_a_process_that_keeps_failing_is_told_of_less_and_less() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    for delay_ms in (200, 400, LONGEST_DELAY_MS, LONGEST_DELAY_MS):
        terminal.exited("sick", "ended with exit code 1", "no luck", delay_ms)
    terminal.ready("sick", 4)
    terminal.exited("sick", "ended with exit code 1", "no luck", 200)
    terminal.exited("sick", "ended with exit code 1", "other reasons", 400)
    assert told(stream) == [
        "sick ended with exit code 1; starting it again in 0.2 s",
        "           it last said: no luck",
        "sick ended with exit code 1; starting it again in 0.4 s",
        "sick ended with exit code 1; from now on it is tried every 10 s",
        "sick is ready again (restart 4)",
        "sick ended with exit code 1; starting it again in 0.2 s",
        "           it last said: no luck",
        "sick ended with exit code 1; starting it again in 0.4 s",
        "           it last said: other reasons",
    ]


def test_a_killed_process_has_no_last_words() -> None:
    stream = io.StringIO()
    Terminal(stream).exited("a", "was killed by SIGKILL", "INFO all is well", 200)
    assert told(stream) == ["a was killed by SIGKILL; starting it again in 0.2 s"]


def test_a_reader_that_went_away_does_not_matter() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    terminal = Terminal(Closed())
    terminal.step("one")
    terminal.step("two")
