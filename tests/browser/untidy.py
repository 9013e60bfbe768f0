"""Untidy data: 90-character names without a place to break them, many queues, replicas that are down, long sentences."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from remoting.facts.broker_state import MemberState
from remoting.facts.snapshot import (
    ClusterSnapshot,
    ConsumedQueue,
    ConsumedTopic,
    ConsumerGroup,
    Event,
    Group,
    MissingCopy,
    Process,
    Queue,
    Quorum,
    Reason,
    Replica,
    Spark,
    Timers,
    Topic,
    Verdict,
)
from remoting.facts.timers import AsideTimer, TopicTimers
from remoting.facts.words import BrokerRole, Health, Severity
from remoting.group_settings import MOST_INVISIBLE_MS
from tests.support.documents import document
from tests.web.fakes import HEALTHY


def named(what: str) -> str:
    """A name of 90 characters without any place to break it."""
    return (what + "withouteverabreak" * 6)[:90]


TOPIC, GROUP, BROKERS, CLUSTER, USER = (named(each) for each in ("topic", "group", "brokers", "cluster", "user"))
SENTENCE = (
    f"java.lang.IllegalStateException: the queue of {TOPIC} could not be read from {BROKERS} at 192.168.100.200:10911 "
    "within 30 s, because its replica has not answered since the last election and no other one is in the sync-state set. "
)
QUEUES = 24
LARGE = 9_007_199_254_740_993
OFFSET = 123_456_789_012


def untidy_document() -> dict[str, Any]:
    """What the collector would write of such a cluster now."""
    as_of = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return document(replace(UNTIDY, as_of=as_of))


def _replica(broker_id: int) -> Replica:
    healthy = HEALTHY.groups[0].replicas[0]
    if broker_id == 1:
        return replace(healthy, process=f"{BROKERS}-1", role=BrokerRole.MASTER)
    if broker_id == 2:
        return replace(healthy, id=2, process=f"{BROKERS}-2", role=BrokerRole.REPLICA, eligible=True, gap_bytes=LARGE)
    return Replica(
        id=broker_id,
        address="[2001:db8:85a3:1234:5678:8a2e:370:7334]:10931",
        alive=False,
        role=BrokerRole.UNREACHABLE,
        max_offset=LARGE,
        eligibility_reason=SENTENCE,
    )


def _queues(group: str) -> tuple[Queue, ...]:
    return tuple(
        Queue(group=group, queue_id=number, min_offset=0, max_offset=OFFSET, last_store_ms=1_790_000_000_000)
        for number in range(QUEUES)
    )


def _topic(name: str) -> Topic:
    return Topic(name=name, queues=_queues(BROKERS), message_count=OFFSET * QUEUES, in_per_s=123_456.7)


def _group(name: str) -> ConsumerGroup:
    """One that has read two queues of all."""
    queues = tuple(
        ConsumedQueue(
            group=BROKERS,
            queue_id=number,
            consumer_offset=7 if number < 2 else None,
            start_offset=None if number < 2 else 0,
            max_offset=OFFSET,
            lag=OFFSET,
            in_flight=12_345,
            pending_reset=99 if number == 1 else None,
        )
        for number in range(QUEUES)
    )
    member = MemberState(
        client_id=f"{named('client')}@4711@{named('unit')}",
        address="192.168.100.200:50211",
        language="JAVA",
        version="5.3.3",
    )
    return ConsumerGroup(
        name=name,
        topics=(ConsumedTopic(topic=TOPIC, lag=OFFSET * QUEUES, lag_at_least=True, in_flight=12_345, queues=queues),),
        forbidden=(named("forbidden"), TOPIC),
        invisible_min_ms=MOST_INVISIBLE_MS - 1,
        invisible_max_ms=MOST_INVISIBLE_MS,
        invisible_default_ms=MOST_INVISIBLE_MS - 1,
        members=(member,),
        lag=OFFSET * QUEUES,
        lag_at_least=True,
        in_flight=12_345,
    )


_missing = tuple(
    MissingCopy(broker_id=number, reason=SENTENCE, stalls=number == 3, since_ms=1_790_000_000_000)
    for number in (3, 4, 5)
)
_TIMERS = Timers(
    waiting=LARGE,
    near=1_000_000,
    aside=1,
    overdue_ms=500_000_000,
    late=True,
    delivered=LARGE,
    topics=tuple(
        TopicTimers(topic=name, waiting=OFFSET, overdue=OFFSET, since_ms=1_790_000_040_000, ahead=(OFFSET,) * 13)
        for name in (TOPIC, named("second"))
    ),
    late_bounds_ms=(2, 10),
    late_counts=(OFFSET, 9, 1),
    set_aside=(AsideTimer(offset=OFFSET, reason=SENTENCE),),
)
UNTIDY: ClusterSnapshot = replace(
    HEALTHY,
    verdict=Verdict(
        status=Health.DEGRADED,
        reasons=tuple(
            Reason(code=f"r{number}", severity=severity, text=SENTENCE, link="/")
            for number, severity in enumerate((Severity.CRITICAL, Severity.WARNING, Severity.WARNING))
        ),
    ),
    groups=(
        replace(
            HEALTHY.groups[0],
            cluster=CLUSTER,
            name=BROKERS,
            weaknesses=(SENTENCE,),
            quorum=Quorum(kind="controllers", copies=1, wanted_copies=5, min_copies=2, refused=True, missing=_missing),
            replicas=tuple(_replica(number) for number in range(1, 6)),
            timers=_TIMERS,
        ),
        HEALTHY.groups[0],
        Group(cluster=CLUSTER, name=named("fixed")),
    ),
    topics=(
        *(_topic(name) for name in (TOPIC, named("second"), "orders")),
        *(_topic(f"%RETRY%{named(f'group{number}')}+{TOPIC}") for number in range(60)),
        _topic(f"%DLQ%{GROUP}"),
        _topic(f"%RETRY%{GROUP}+{TOPIC}"),
        *(topic for topic in HEALTHY.topics if topic.system),
    ),
    consumer_groups=(_group(GROUP), *(_group(named(f"group{number}")) for number in range(9))),
    timeline=tuple(Event(at=f"2026-11-20T10:00:0{number}.000Z", kind="election", text=SENTENCE) for number in range(9)),
    processes=(
        *HEALTHY.processes,
        Process(name=f"{BROKERS}-2", state="backing-off", restarts=12_345, since="2026-11-20T09:00:00.000Z"),
    ),
    spark=Spark(state="failed", detail=SENTENCE),
)


def fill_tables() -> str:
    """Put as much into the console's own tables, in a process that has Django set up. Gives back where to look, as JSON."""
    from webapp.accounts import tokens
    from webapp.accounts.models import User
    from webapp.accounts.permissions import PERMISSIONS, actor_for, set_role
    from webapp.audit import services as audit
    from webapp.lifecycle import State
    from webapp.operations.models import Operation
    from webapp.reports import stream
    from webapp.reports.catalogue import Row
    from webapp.reports.models import ReportRun, ReportSchedule

    user = User.objects.create_user(username=USER, password="a boom of many logs", time_zone="Asia/Kolkata")
    set_role(user, "admin")
    for number in range(3):
        tokens.create(user, f"{named('token')[:78]}{number}", list(PERMISSIONS))
    audit.record(
        actor_for(user, ip="2001:db8:85a3:1234:5678:8a2e:370:7334"),
        "permission.remove",
        target=f"{USER}/Topic:{TOPIC}",
        outcome=audit.Outcome.REFUSED,
        detail=SENTENCE[:500],
    )
    operation = Operation.objects.create(
        kind="topic.create",
        target=TOPIC,
        state=State.FAILED,
        parameters={"name": TOPIC, "group": BROKERS},
        nodes=[{"node": f"{BROKERS}/{number}", "outcome": "UNKNOWN", "detail": SENTENCE} for number in range(3)],
        result={"told": SENTENCE},
        error_code="cluster-unavailable",
        error=SENTENCE * 2,
        requested_by_name=USER,
        ip="2001:db8:85a3:1234:5678:8a2e:370:7334",
    )
    schedule = ReportSchedule.objects.create(
        name=named("schedule"),
        report="throughput",
        cron="*/15 9-17 1-7 1,4,7,10 1-5",
        time_zone="America/Argentina/ComodRivadavia",
    )
    runs = [
        ReportRun.objects.create(
            report="throughput", parameters={"topics": [TOPIC]}, schedule=schedule, requested_by_name=USER
        )
        for _ in range(3)
    ]
    for run in runs[:2]:
        stream.starting(run.pk)
    minute = int(time.time()) // 60 * 60
    at = [f"{datetime.fromtimestamp(minute - 60 * ago, UTC):%Y-%m-%dT%H:%M:%SZ}" for ago in range(5)]
    data = {"topic": TOPIC, "group": BROKERS, "queue_id": 7, "messages": OFFSET, "bytes": LARGE}
    rows = [Row("throughput", f"{TOPIC}|{each}", {**data, "minute": each}) for each in at[:1]]
    rows += [Row("keys", str(number), {"topic": TOPIC, "key": "k" * 300, "messages": 1}) for number in range(9)]
    progress = {"summary": [SENTENCE, SENTENCE], "rows_read": OFFSET, "rows_total": OFFSET}
    stream.running(runs[0].pk)
    stream.publish(runs[0].pk, rows, progress)
    stream.succeeded(runs[0].pk, rows)
    stream.failed(runs[1].pk, SENTENCE * 4)
    return json.dumps(
        {
            "operation": str(operation.pk),
            "schedule": schedule.pk,
            "finished": str(runs[0].pk),
            "failed": str(runs[1].pk),
            "queued": str(runs[2].pk),
        }
    )
