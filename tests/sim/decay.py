"""Rot like any other fault: bits flip in any file of one broker and of one controller, at any time, and nobody is told; and the
controller's whole directory is put back as it was before its last start.

The others have whole copies, so nothing may be lost and nothing that is damaged may be served. The group goes on without the
damaged broker when the others have everything, no other broker takes the damage over, and no consumer sees it. What is damaged of
the log, and of what is derived from it, is mended in place as soon as the others are there; a start may refuse for good only when
files are damaged that nobody else has a copy of: who the broker is, and which epochs its log has. Those are left alone while the
broker is the whole set: then it alone has everything, and rightly nobody goes on without it.

Bits of the log flip only where another broker durably has the same byte; so there is never more than one damaged copy. And they
flip only in records that are confirmed to their end: a replica that has a part of one confirms these bytes, drops them when it
starts again, and may be elected; then other records take the place of that one, which nobody was promised. A copy is put back
only when both others know in which life the controller was since: who met nobody in it is not found out (W38).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from brokerd.store.log.layout import file_name, file_start
from remoting.record.layout import FILLER_BYTES, MAGIC_BLANK
from tests.sim.broker import SimBroker
from tests.sim.controller import SimController
from tests.support.disks import FaultyDisk, MemoryFile

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

LOG = "commitlog"
# What others have as well, or follows from it; and what is no more than a hint.
MENDABLE = frozenset({LOG, "consumequeue", "index", "index.checkpoint", "checkpoint", "scrub", "abort"})
_BLANK = MAGIC_BLANK.to_bytes(4)
_NEAR_THE_END = 2000  # bytes that were written last
_PUT_BACK = 0.3  # of what strikes the controller


class Flip(NamedTuple):
    """One byte of the log that is not what it was."""

    offset: int
    right: int
    wrong: int


class Decay:
    """What rots in one story: the files of a broker and of a controller, chosen once."""

    def __init__(self, cluster: SimCluster, broker: SimBroker, controller: SimController) -> None:
        self._cluster = cluster
        self._broker = broker
        self._controller = controller
        self._damaged: dict[SimBroker | SimController, set[str]] = {}  # and the kinds of files that were
        self._copied: tuple[int, dict[str, MemoryFile]] | None = None  # the controller's files, and its life then
        self.flips: list[Flip] = []  # in the log

    def is_damaged(self, node: SimBroker | SimController) -> bool:
        """Whether it may refuse to start."""
        return node in self._damaged

    def replaced(self, broker: SimBroker) -> None:
        """It has a new disk."""
        self._damaged.pop(broker, None)

    def is_mendable(self, broker: SimBroker) -> bool:
        """Whether only such files of its disk were damaged that can be made whole again."""
        return self._damaged.get(broker, set()) <= MENDABLE

    def is_whole(self, broker: SimBroker) -> bool:
        """Whether the log of a running broker holds no byte that was flipped."""
        return not any(self._wrong(broker))

    def may_lose(self, broker: SimBroker) -> bool:
        """Whether the group can do without a broker's disk: a member of the set is well."""
        members = self._members()
        return not self._damaged or (broker is not self._broker and any(each is not self._broker for each in members))

    def strike(self, rng: Random) -> str | None:
        """Flip a bit somewhere; what was done, None when there was nothing that may be damaged."""
        node: SimBroker | SimController = self._broker if rng.random() < 0.75 else self._controller
        if node is self._controller and rng.random() < _PUT_BACK:
            return self._copy() if self._copied is None else self._put_back(*self._copied)
        # First what kind of file; of a broker's the log as often as all others.
        kinds = sorted({_kind(path) for path in node.disk.files})
        if not kinds:
            return None
        kind = LOG if node is self._broker and LOG in kinds and rng.random() < 0.5 else rng.choice(kinds)
        path = rng.choice([path for path in sorted(node.disk.files) if _kind(path) == kind])
        return self._strike(node, path, rng, near_the_end=rng.random() < 0.5)

    def strike_the_end(self, rng: Random) -> str | None:
        """Flip a bit in what the broker wrote to its log last."""
        files = sorted(path for path in self._broker.disk.files if _kind(path) == LOG)
        files = [path for path in files if self._broker.disk.files[path].platter.held]
        return self._strike(self._broker, files[-1], rng, near_the_end=True) if files else None

    def _copy(self) -> str | None:
        controller = self._controller
        if not controller.is_up or not controller.node.core.configuration.cluster:
            return None
        self._copied = controller.life, copy.deepcopy(controller.disk.files)
        return f"{controller.name}'s directory is copied"

    def _put_back(self, life: int, copied: dict[str, MemoryFile]) -> str | None:
        controller = self._controller
        if not controller.is_up or controller.life == life or not self._is_known(controller):
            return None
        self._copied = None
        controller.kill()
        controller.disk.files.clear()
        controller.disk.files.update(copied)
        self._damaged.setdefault(controller, set()).add("copy")
        controller.start()
        return f"an older copy of {controller.name}'s directory is put back"

    def _is_known(self, controller: SimController) -> bool:
        """Whether all other members know it in the life it is in."""
        members = controller.node.core.configuration.members
        others = [each for each in self._cluster.controllers if each is not controller and each.node_id in members]
        return len(others) == len(members) - 1 and all(
            each.is_up and each.members.acquaintances.life(controller.node_id) == controller.members.lives[0]
            for each in others
        )

    def _strike(self, node: SimBroker | SimController, path: str, rng: Random, *, near_the_end: bool) -> str | None:
        file = node.disk.files[path]
        size = len(file.platter.held)
        first = max(0, size - _NEAR_THE_END) if near_the_end else 0
        places = [n for n in (rng.randrange(first, max(first + 1, size)) for _ in range(8)) if _is_durable(file, n)]
        if _kind(path) == LOG:
            places = [n for n in places if self._has_copy(path, n) and not _is_blank(file, n)]
        if not places or (isinstance(node, SimBroker) and not self._may_lose_file(path)):
            return None
        bit = rng.randrange(8)
        self._flip(node, path, places[0], bit)
        return f"{node.name} {path} at {places[0]}, bit {bit}"

    def _may_lose_file(self, path: str) -> bool:
        """Whether the group can go on when a start of the broker refuses for good: not while it is all of the set, and the only
        one that has everything."""
        return _kind(path) in MENDABLE or any(each is not self._broker for each in self._members())

    def check(self) -> None:
        """No broker took a damaged byte over, nor got it with a new copy; who was damaged has mended itself or is gone."""
        for broker in self._cluster.brokers:
            if broker.is_up:
                for flip, held in self._wrong(broker):
                    self._cluster.world.require(
                        False, f"{broker.name} has a rotten byte at {flip.offset}: {held:02x} for {flip.right:02x}"
                    )

    def _wrong(self, broker: SimBroker) -> Iterator[tuple[Flip, int]]:
        """The bytes of its log that were flipped once, on any broker, and are not right; and what they are."""
        log = broker.core.store.commitlog
        for flip in self.flips:
            if log.min_offset <= flip.offset < log.end_offset:
                held = bytes(log.read(flip.offset, 1))[0]
                if held != flip.right:
                    yield flip, held

    def _flip(self, node: SimBroker | SimController, path: str, position: int, bit: int) -> None:
        right = node.disk.files[path].platter.read(position, 1)[0]
        node.disk.flip_bit(path, position, bit)
        self._damaged.setdefault(node, set()).add(_kind(path))
        if isinstance(node, SimBroker):
            if node not in self._cluster.rotten:
                self._cluster.rotten.append(node)
            if _kind(path) == LOG:
                self.flips.append(Flip(_start_of(path) + position, right, right ^ 1 << bit))

    def _has_copy(self, path: str, position: int) -> bool:
        """Whether the group has confirmed the byte's whole record, and another member of the set has the byte durably, too."""
        offset = _start_of(path) + position
        byte = self._broker.disk.files[path].platter.read(position, 1)
        confirmed = max((each.core.replica.confirm_offset for each in self._cluster.brokers if each.is_up), default=0)
        others = [each for each in self._members() if each is not self._broker]
        return any(
            _durable_byte(each.disk, offset, self._broker) == byte
            and _ends_before(each.disk, offset, self._broker, confirmed)
            for each in others
        )

    def _members(self) -> list[SimBroker]:
        group = self._cluster.truth.group
        ids = () if group is None else group.sync_state_set
        return [self._cluster.ids[each] for each in ids if each in self._cluster.ids]


def _kind(path: str) -> str:
    """The directory that a file is in; a file of the root is a kind of its own."""
    return path.split("/", maxsplit=1)[0]


def _start_of(path: str) -> int:
    """Of a file of the log: where in the log it begins."""
    return int(path.removeprefix(f"{LOG}/"))


def _is_blank(file: MemoryFile, position: int) -> bool:
    """Whether the byte is behind a filler's head, where nobody looks."""
    held = file.platter.held
    head = held.rfind(_BLANK) - (FILLER_BYTES - len(_BLANK))
    return head >= 0 and head + FILLER_BYTES <= position < head + int.from_bytes(held[head : head + 4])


def _is_durable(file: MemoryFile, position: int) -> bool:
    """Whether the byte is on the platter as readers see it, and no write to it is under way."""
    under_way = any(
        isinstance(change, int) or change[0] <= position < change[0] + len(change[1]) for change in file.unsynced
    )
    is_held = position < len(file.platter.held) and position < file.seen.size
    return is_held and not under_way and file.seen.read(position, 1) == file.platter.read(position, 1)


def _durable_byte(disk: FaultyDisk, offset: int, of: SimBroker) -> bytes:
    held, position = _durable_file(disk, offset, of)
    return bytes(held[position : position + 1])


def _ends_before(disk: FaultyDisk, offset: int, of: SimBroker, limit: int) -> bool:
    """Whether the record that the byte is in ends at the limit or before; False where that record is not on the platter."""
    held, position = _durable_file(disk, offset, of)
    end = 0
    while end <= position:
        size = int.from_bytes(held[end : end + 4])
        if not size:
            return False
        end += size
    return offset - position + end <= limit


def _durable_file(disk: FaultyDisk, offset: int, of: SimBroker) -> tuple[bytearray, int]:
    """What is on the platter of the file of the log that has the byte, and where in it the byte is."""
    start = file_start(offset, of.store_settings.segment_size_bytes)
    file = disk.files.get(f"{LOG}/{file_name(start)}")
    return bytearray() if file is None else file.platter.held, offset - start
