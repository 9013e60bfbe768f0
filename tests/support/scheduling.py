"""Beat and workers as real processes that start at once: forked, when it is told to, from this program, which has loaded all.

    python -m tests.support.scheduling        reads `start NAME` and `kill NAME` from standard input, answers each with a line

Everything that these processes decide by the time goes by a clock on which a minute takes half a second, so a schedule of
every minute is due twice a second. Celery's own intervals go by the true clock and are made as much shorter.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
django.setup()  # models can be imported only afterwards

from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402
from django.db.backends.base.base import BaseDatabaseWrapper  # noqa: E402
from django.db.backends.signals import connection_created  # noqa: E402
from django.dispatch import receiver  # noqa: E402
from django.utils import timezone  # noqa: E402

from tasks import beat, schedule  # noqa: E402
from tasks.app import MAKE_DUE_RUNS, app  # noqa: E402
from webapp.appliance.processes import dying_with_this_process  # noqa: E402

SPEED = 120
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
# (name, catch-up, overlap)
SCHEDULES = (("a", "all", "queue"), ("b" * 90, "latest", "skip"), ("c", "none", "queue"))
_WORKER = "--pool solo --without-gossip --without-mingle --without-heartbeat --loglevel WARNING"


def fast_clock() -> None:
    """Make Django's clock, by which schedules, rows and the janitor go, a fast one that begins at BEGIN."""
    begun = time.time()
    timezone.now = lambda: BEGIN + timedelta(seconds=(time.time() - begun) * SPEED)
    schedule.RESEND_EVERY_S = 2
    app.conf.beat_schedule = {
        name: {**app.conf.beat_schedule[name], "schedule": every_s}
        for name, every_s in (("due runs", 0.1), ("janitor", 0.5))
    }
    assert app.conf.beat_schedule["due runs"]["task"] == MAKE_DUE_RUNS


def make_database() -> None:
    """The console's, with schedules of every minute."""
    from webapp.reports.models import ReportSchedule

    call_command("migrate", interactive=False, verbosity=0)
    for name, catch_up, overlap in SCHEDULES:
        ReportSchedule.objects.create(
            name=name,
            report="throughput",
            cron="* * * * *",
            catch_up=catch_up,
            overlap=overlap,
            decided_until=timezone.now(),  # the field's default is the true clock's
        )
    connections.close_all()


def start(name: str) -> int:
    """`beat`, or a worker of any other name, as its command line starts it."""
    before = dying_with_this_process()
    pid = os.fork()
    if pid:
        return pid
    before()
    with open(Path(os.environ["LOGBOOM_DATA_DIR"]) / f"{name}.log", "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    worker = ["worker", "-Q", "default", "-n", f"{name}@%h", *_WORKER.split()]
    beat.main() if name == "beat" else app.start(worker)
    os._exit(0)


def kill(pid: int) -> int:
    """Kill a process and return the signal that ended it: another one, or none, when it had ended before."""
    os.kill(pid, signal.SIGKILL)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


@receiver(connection_created)
def leave_it_to_the_system(connection: BaseDatabaseWrapper, **_: object) -> None:
    """What is killed has written all the same: nothing has to reach the disk."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=OFF")


def load_all() -> None:
    """Import what a child would import."""
    app.loader.import_default_modules()
    for name in ("bin.celery", "bin.worker", "apps.beat", "apps.worker", "concurrency.solo"):
        import_module(f"celery.{name}")
    import_module("kombu.transport.redis")


def main() -> None:
    load_all()
    fast_clock()
    make_database()
    pids: dict[str, int] = {}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        command, name = line.split()
        if command == "start":
            pids[name] = start(name)
            sys.stdout.write("started\n")
        else:
            sys.stdout.write(f"{kill(pids.pop(name))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
