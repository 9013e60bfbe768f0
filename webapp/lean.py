"""Starts a module of the appliance without what its libraries would load only because it is installed.

    python -m webapp.lean MODULE ARGUMENTS

Django's REST framework, the Redis client and others look whether some libraries are there, and load them whether or not anybody
will use them: an eighth of the console's memory. For the processes of the appliance, which use none of them, these libraries are
not there. Nothing but memory depends on it: `python -m MODULE ARGUMENTS` does the same.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from webapp.appliance import environment

UNUSED: Final = ("jinja2", "opentelemetry", "pygments", "requests")
POSTGRESQL: Final = ("psycopg", "psycopg2")
"""Of use to a database that `DATABASE_URL` names."""


def unused(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The libraries that a process with this environment has no use of (pure)."""
    return UNUSED if environ.get(environment.DATABASE_URL) else UNUSED + POSTGRESQL


def leave_out(names: Iterable[str]) -> None:
    """To import one of them raises ModuleNotFoundError from now on, unless it is loaded already."""
    for name in names:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # the import system's own way to say so


def main() -> None:
    """Run the module that the first argument names."""
    leave_out(unused(os.environ))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
