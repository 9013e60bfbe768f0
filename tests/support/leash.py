"""Child processes that die with the test run, also when that is killed.

`preexec_fn` would do it too, but runs Python in a forked copy of this process: with gRPC's threads in it that copy may break
before it executes its program. Without it the child is made without such a copy, and a program of Debian's base system asks the
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence


def leashed(argv: Sequence[str]) -> list[str]:
    """The command line that runs another one in the same process, after asking to be killed when its parent dies."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *argv]
