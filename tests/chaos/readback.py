"""What a run left: every message as the master serves it, and the daemons' logs as their disks hold them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from controllerd.raft.log_file import RaftLogFile
from controllerd.settings import RaftSettings
from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.disk import LocalDisk
from remoting.record.codec import Record, decode_records
from tests.chaos.checks import ControllerLog
from tests.support.pulling import pull_fields


def read_queue(address: str, topic: str, queue_id: int) -> list[Record]:
    """Every message of a queue that a broker still has, in order."""
    records: list[Record] = []
    accept = (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)
    with SocketConnection(address) as connection:
        offset = 0
        while True:
            answer = connection.call(codes.PULL_MESSAGE, pull_fields(topic, queue_id, offset), accept=accept)
            if answer.code == codes.SUCCESS:
                records += decode_records(answer.body)
            offset = int(answer.ext["nextBeginOffset"])
            if answer.code != codes.SUCCESS and offset >= int(answer.ext["maxOffset"]):
                return records


def controller_log(directory: Path, name: str, names: Sequence[str]) -> ControllerLog:
    """The committed entries of a controller that has stopped."""
    disk = LocalDisk(directory)
    try:
        file = RaftLogFile(disk, RaftSettings().group, name, names)
        log = file.open().log
        entries = log.slice(log.first_index, log.committed + 1, 1 << 40)
        file.close()
        return ControllerLog(log.first_index, [(each.term, bytes(each.data)) for each in entries])
    finally:
        disk.close()


def log_bytes(directory: Path, start: int, end: int) -> tuple[int, bytes]:
    """(first offset, bytes) of a commitlog, whose files are named by the offset that they begin with."""
    content = bytearray()
    first = -1
    for file in sorted(directory.iterdir()):
        if not file.name.isdecimal() or int(file.name) >= end:
            continue
        if first < 0:
            first = int(file.name)
        assert int(file.name) == first + len(content), f"{file} does not follow the file before it"
        content += file.read_bytes()
    begin = max(start, first)
    return begin, bytes(content[begin - first : end - first])
