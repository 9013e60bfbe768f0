"""When a master whose disk takes no message gives way to a member of the set that has room (pure)

Brokers say in their heartbeats whether their disks take messages; those of earlier versions do not say, and are left alone. A
master without room is given a moment, in which retention may remove what is old. Who takes over has said for a while that it has
room, so full disks pass the lead on slowly, and not at all when every one of them is full. Nor does one take over whose disk
stands still: it would acknowledge nothing, and give the lead back at once (`standing_disks`). Who gives way stays in the set as
long as its log can follow.
"""

from __future__ import annotations

from typing import Final

from controllerd.replicas.elect import choose_master
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.state import Group

NO_ROOM_MS: Final = 2000  # a master without room for less keeps the lead
ROOM_MS: Final = 5000  # who has had room for less does not take it


def successor_with_room(group: Group, table: HeartbeatTable, now_ms: int) -> int | None:
    """Who is to lead instead of a living master that has no room; None when it keeps the lead."""
    if group.master_broker_id is None or not _has_said(
        False, group, table, group.master_broker_id, now_ms - NO_ROOM_MS
    ):
        return None
    roomy = [
        each
        for each in table.observe(group, now_ms)
        if each.broker_id != group.master_broker_id
        and not each.disk_stands
        and _has_said(True, group, table, each.broker_id, now_ms - ROOM_MS)
    ]
    return choose_master(group, roomy, None, unclean=False, suspects=False).broker_id


def _has_said(has_room: bool, group: Group, table: HeartbeatTable, broker_id: int, since_ms: int) -> bool:
    """Whether a replica has said so, and nothing else, since that moment or longer."""
    beat = table.get(group, broker_id)
    return beat is not None and beat.has_room is has_room and beat.room_since_ms <= since_ms
