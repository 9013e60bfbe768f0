"""Copies of brokers' directories in light stories, and what takes whose place.

A directory is the log and the files of epochs. The controller of these stories counts no lives, it knows what they would tell it:
a member whose directory another one took the place of runs elsewhere. So it leads nobody, and leaves the set as soon as it
speaks while a member is there that does not. A copy that was taken in the present life of a broker is not used: no life tells it
apart.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from random import Random

from tests.support.disks import MemoryFile
from tests.unit.brokerd.replication.group import Group, Node


@dataclass
class Directory:
    """What a broker has on its disk; a copy becomes a directory of its own, with another `number`, when it is used."""

    number: int
    life: int  # the last one on it
    min_offset: int
    data: bytes
    files: dict[str, MemoryFile]


class Directories:
    """The copies that were taken of each broker's directory, and the directories that were put aside."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._copies: dict[int, list[Directory]] = {}
        self._aside: dict[int, list[Directory]] = {}
        self._numbers: dict[int, int] = {}  # of what each broker runs on; 0 is its first one
        self._of_member: dict[int, int] = {}  # of what it ran on as a member of the set
        self._last_number = 0

    def copy(self, rng: Random) -> bool:
        """Of a broker's directory as a loss of power would leave it."""
        nodes = list(self._group.nodes.values())
        node = rng.choice(nodes)
        if not node.life:
            return False
        taken = self._directory(node)
        end = rng.randint(node.log.flushed_offset, node.log.end_offset)
        taken.data = taken.data[: end - node.log.min_offset]
        self._copies.setdefault(node.broker_id, []).append(taken)
        return True

    def put_back(self, rng: Random) -> bool:
        """A broker ends, and another directory of it, a copy or what was put aside, takes the place of its own."""
        usable = [
            (node, each)
            for node in self._group.nodes.values()
            for each in (*self._copies.get(node.broker_id, ()), *self._aside.get(node.broker_id, ()))
            if each.life < node.life and self._may_be_put_back(node)
        ]
        if not usable:
            return False
        node, taken = rng.choice(usable)
        if taken in self._copies.get(node.broker_id, ()):
            self._last_number += 1
            taken = Directory(self._last_number, taken.life, taken.min_offset, taken.data, copy.deepcopy(taken.files))
        else:
            self._aside[node.broker_id].remove(taken)
        self._exchange(node, taken)
        return True

    def bring_back(self) -> None:
        """Where every member of the set runs elsewhere, each has its own directory back."""
        controller = self._group.controller
        if not controller.members or not controller.members <= controller.elsewhere:
            return
        for broker_id in sorted(controller.members):
            own = next(each for each in self._aside[broker_id] if each.number == self._of_member[broker_id])
            self._aside[broker_id].remove(own)
            self._exchange(self._group.nodes[broker_id], own)

    # ---- inside

    def _may_be_put_back(self, node: Node) -> bool:
        """The controllers know which directory the member had, or nobody counts on what it has, nor asks for that."""
        group = self._group
        if node.broker_id in group.controller.members:
            return True
        masters = [each for each in group.nodes.values() if each.alive and each is not node]
        required = [each.machine.mastership.sync.required for each in masters if each.machine.mastership is not None]
        asked = [each.proposal.members for each in group.requests if each.proposal is not None]
        acks = any(wire.replica is node and wire.to_master for wire in group.wires.values())
        return not acks and not any(node.broker_id in each for each in (*required, *asked))

    def _directory(self, node: Node) -> Directory:
        files = copy.deepcopy(node.disk.files)
        return Directory(
            self._numbers.get(node.broker_id, 0), node.life, node.log.min_offset, bytes(node.log.data), files
        )

    def _exchange(self, node: Node, taken: Directory) -> None:
        controller, broker_id = self._group.controller, node.broker_id
        if node.alive:
            self._group.crash(node)
        if broker_id in controller.members and broker_id not in controller.elsewhere:
            self._of_member[broker_id] = self._numbers.get(broker_id, 0)
        self._aside.setdefault(broker_id, []).append(self._directory(node))
        self._numbers[broker_id] = taken.number
        log = node.log
        log.min_offset, log.data = taken.min_offset, bytearray(taken.data)
        log.flushed_offset = log.end_offset
        log.crash(log.end_offset)  # a start cuts an incomplete record
        node.disk.files.clear()
        node.disk.files.update(taken.files)
        node.life += 1  # of all that was remembered of its log nothing is true
        is_elsewhere = broker_id in controller.members and self._of_member[broker_id] != taken.number
        for marked in (controller.suspects, controller.elsewhere):
            if is_elsewhere:
                marked.add(broker_id)
            else:
                marked.discard(broker_id)
