"""When a master whose disk stands still gives way to a member of the set whose disk works (pure)

A disk that stands still takes writes and does not end a sync, so nothing is acknowledged while the process goes on speaking.
Brokers say in their heartbeats how their logs become durable; those of earlier versions do not say, and are left alone. Only who
says that its disk works takes over: one that needed half as long for a sync as makes a disk stand is slow, and stays so for a
while. So disks that are slow together, under a load or on one store, pass nothing on, and each disk loses the lead at most once
in that while. And it must have said so just now: should its disk stand for the same reason as the master's, its loop may stand
in a write, and its last word be an old one. Who has no room takes over when nobody else does: it takes no message, but hands out
those that it has.
"""

from __future__ import annotations

from typing import Final

from controllerd.replicas.elect import choose_master
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.state import Group
from remoting.facts.words import DiskPace

_FRESH_INTERVALS: Final = 2  # of its heartbeats, within which a word is a new one


def disk_stands(group: Group, table: HeartbeatTable, broker_id: int | None) -> bool:
    """Whether a replica said last that its disk stands still."""
    beat = table.get(group, broker_id) if broker_id is not None else None
    return beat is not None and beat.disk is DiskPace.STANDS


def successor_with_working_disk(group: Group, table: HeartbeatTable, now_ms: int) -> int | None:
    """Who is to lead instead of a living master whose disk stands still; None when it keeps the lead."""
    if not disk_stands(group, table, group.master_broker_id):
        return None
    working = [
        each
        for each in table.observe(group, now_ms)
        if each.broker_id != group.master_broker_id and _works_now(group, table, each.broker_id, now_ms)
    ]
    roomy = [each for each in working if _has_room(group, table, each.broker_id)]
    successor = choose_master(group, roomy, None, unclean=False, suspects=False).broker_id
    if successor is None:
        successor = choose_master(group, working, None, unclean=False, suspects=False).broker_id
    return successor


def _has_room(group: Group, table: HeartbeatTable, broker_id: int) -> bool:
    """Whether it does not say that it has none."""
    beat = table.get(group, broker_id)
    return beat is None or beat.has_room is not False


def _works_now(group: Group, table: HeartbeatTable, broker_id: int, now_ms: int) -> bool:
    beat = table.get(group, broker_id)
    if beat is None or beat.disk is not DiskPace.WORKS:
        return False
    return now_ms - beat.received_ms <= _FRESH_INTERVALS * beat.interval_ms
