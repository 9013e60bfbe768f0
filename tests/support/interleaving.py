"""Two threads in every order in which one of them runs to its end in the middle of the other.

A thread cannot be stopped anywhere by events and barriers alone without hooks in the code that it runs. Here the interpreter's
own tracing stops it before each instruction of the modules in question, one after the other; no clock is involved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any


def interrupt(
    first: Callable[[], object],
    second: Callable[[], object],
    at: int,
    *,
    within: Collection[str],
    unless: Callable[[], bool] = lambda: False,
) -> bool:
    """Run `first` in a thread; before its instruction number `at` (from 0) of the modules `within`, run `second` to its end in
    another one. Instructions before which `unless` is true are not counted: there `second` would only wait for `first`.

    What either raises is raised. False: `first` has fewer instructions, and `second` did not run.
    """
    passed = 0
    done = False

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal passed, done
        if frame.f_globals.get("__name__") not in within:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not done and not unless():
            if passed == at:
                done = True
                with ThreadPoolExecutor(1) as other:
                    other.submit(second).result()
            passed += 1
        return trace

    def traced() -> None:
        sys.settrace(trace)
        try:
            first()
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(traced).result()
    return done
