"""What the collector and a report's worker do to a console, at a steady pace; a program of `tests.bench.viewers`.

    python tests/bench/announcer.py prepare VIEWERS       JSON: cookies of that many sessions, and the id of a running report
    python tests/bench/announcer.py steps RUN COUNT PER_S    rows and progress of the run, each a step
    python tests/bench/announcer.py snapshots COUNT PER_S    snapshots

A line for each thing that was announced: its number, and when that was, in nanoseconds of the machine's monotonic clock. It
runs with the console that PYTHONPATH names, so that two versions of it can be compared.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import django


def prepare(viewers: int) -> None:
    from django.contrib.auth import get_user_model
    from django.test import Client

    from webapp.accounts.permissions import set_role
    from webapp.reports import stream
    from webapp.reports.models import ReportRun

    users = []
    for role in ("viewer", "operator"):
        user = get_user_model().objects.create_user(username=role)
        set_role(user, role)
        users.append(user)
    cookies = []
    for number in range(viewers):
        client = Client()
        client.force_login(users[number % len(users)])
        cookies.append(f"logboom_session={client.cookies['logboom_session'].value}")
    run = ReportRun.objects.create(report="throughput", parameters={})
    stream.starting(run.pk)
    stream.running(run.pk)
    print(json.dumps({"cookies": cookies, "run": str(run.pk)}))


def at_pace(count: int, per_s: float, announce: Callable[[int], None]) -> None:
    """Call `announce` with the number of each step when it is due."""
    begin_s = time.monotonic()
    for step in range(count):
        time.sleep(max(0.0, begin_s + step / per_s - time.monotonic()))
        announce(step)


def steps(run_id: str, count: int, per_s: float) -> None:
    from django.db import transaction

    from webapp.reports import stream
    from webapp.reports.catalogue import Row

    def announce(step: int) -> None:
        rows = [
            Row(
                "throughput",
                f"a topic with a rather long name {number}|{step}",
                {
                    "topic": f"a topic with a rather long name {number}",
                    "group": "broker-a",
                    "queue_id": number,
                    "minute": f"2026-01-01T{step // 60 % 24:02}:{step % 60:02}:00Z",
                    "messages": step * number,
                    "bytes": step * number * 1000,
                },
            )
            for number in range(20)
        ]
        progress = {"rows_read": step * 1000, "rows_total": count * 1000, "text": "Reading"}
        with transaction.atomic():
            announced_ns: list[int] = []
            transaction.on_commit(lambda: announced_ns.append(time.monotonic_ns()))
            seq = stream.publish(run_id, rows, progress).last_seq
        print(seq, announced_ns[0], flush=True)

    at_pace(count, per_s, announce)


def snapshots(count: int, per_s: float) -> None:
    import redis

    from tests.web.fakes import snapshot_document
    from webapp.announce import announce as announce_to

    store = redis.Redis.from_url(os.environ["REDIS_URL"])

    def announce(step: int) -> None:
        seq = 1000 + step
        document = snapshot_document(seq)
        document["rates"]["in_messages_per_s"] = step
        announced_ns = time.monotonic_ns()
        store.set("logboom:snapshot", json.dumps(document))
        announce_to("snapshot", {"type": "snapshot.changed", "seq": seq})
        print(seq, announced_ns, flush=True)

    at_pace(count, per_s, announce)


if __name__ == "__main__":
    django.setup()
    what, *words = sys.argv[1:]
    if what == "prepare":
        prepare(int(words[0]))
    elif what == "steps":
        steps(words[0], int(words[1]), float(words[2]))
    else:
        snapshots(int(words[0]), float(words[1]))
