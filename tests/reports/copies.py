"""Celery's programs for `tests.support.forked`: Django and all tasks are imported before a copy of it works.

main: `prepare`; or `worker` or `beat`, with the file of its heartbeat and the arguments of its command line
"""

from __future__ import annotations

import mmap
import os
import sys
from importlib import import_module

import django

django.setup()  # models can be imported only afterwards

from tasks import stopping  # noqa: E402
from tasks.app import app  # noqa: E402
from webapp.appliance import prepare  # noqa: E402

app.loader.import_default_modules()
for _name in ("bin.celery", "bin.beat", "bin.worker", "apps.beat", "apps.worker", "concurrency.prefork"):
    import_module(f"celery.{_name}")
import_module("kombu.transport.redis")


def main() -> int:
    """Run as the program that the first argument names."""
    match sys.argv[1:]:
        case ["prepare"]:
            prepare.main()
        case ["worker" | "beat" as program, heartbeat, *arguments]:
            os.environ["LOGBOOM_HEARTBEAT_FILE"] = heartbeat
            stopping._flag = mmap.mmap(-1, 1)  # made at import, it would tell every later worker that one was stopped
            app.start([program, *arguments])
        case others:
            raise AssertionError(f"{others}: there is no such program")
    return 0
