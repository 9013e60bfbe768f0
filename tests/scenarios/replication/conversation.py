"""The commands of the replication scenarios, over a group whose every event is ordered by the text.

group n=3 [set=key:value,...]      brokers 1..n with empty logs, and a controller that has seen them
elect B [tell=(B,..)]              the controller elects B of a new epoch and tells those (default: nobody)
lose-master                        the controller records that there is no master
tell B..                           the controller's present view reaches brokers
append B [n=1]                     producers' messages, ten bytes each, on a broker that takes itself for master
flush B..                          the broker's disk is done with everything appended
dial B                             the broker dials the master that it knows
deliver B [to=master|replica]      what waits on B's connection to its master arrives, replica's bytes first
cut B                              B's connection breaks with everything on it
crash B [kept=N] / start B         power loss (N = how far the log survives, default what was flushed) and start
process B kind                     the controller handles a request of B (alter, view, elect, members)
give-up B                          B stops waiting for the answer to its proposal, which is still under way
answer B / lose-answer B           the controller's oldest answer to B arrives, or never will
tick ms=N                          the clock moves, in steps of 50 ms
settle                             everything happens promptly for three seconds
state [B..] / waiting              who is what; what waits at the controller
"""

from __future__ import annotations

import logging
from copy import deepcopy

import pytest

from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Ack, Handshake, Piece, Reply
from tests.scenarios.runner import Command
from tests.unit.brokerd.replication.group import TICK_MS, Group, Node, Wire
from tests.unit.brokerd.replication.invariants import check_safety


class Conversation:
    """Executes the commands of one file."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.group = Group(1)
        self._caplog = caplog
        caplog.set_level(logging.DEBUG, "brokerd.replication.roles.driver")

    def __call__(self, command: Command) -> str:
        method = getattr(self, "do_" + command.name.replace("-", "_"))
        before = len(self.group.outcomes)
        lines: list[str] = method(command) or []
        if command.name not in ("group", "state", "waiting"):
            lines += [f"a send is answered {status.name}" for status in self.group.outcomes[before:]]
            check_safety(self.group)
        return "\n".join(lines)

    # What people and machines do

    def do_group(self, command: Command) -> list[str]:
        settings: dict[str, object] = {}
        for pair in command.list("set", "()"):
            key, _, value = pair.partition(":")
            settings[key] = int(value) if value.isdecimal() else value
        self.group = Group(command.number("n", 3), ReplicationSettings(**settings))
        return []

    def do_elect(self, command: Command) -> list[str]:
        (winner,) = self._nodes(command)
        self.group.controller.elect(winner.broker_id)
        return self._tell([self.group[int(each)] for each in command.list("tell", "()")])

    def do_lose_master(self, command: Command) -> list[str]:
        self.group.controller.lose_master()
        return []

    def do_tell(self, command: Command) -> list[str]:
        return self._tell(self._nodes(command))

    def do_append(self, command: Command) -> list[str]:
        (node,) = self._nodes(command)
        for _ in range(command.number("n", 1)):
            self.group.append(node, b"of b%d, %d" % (node.broker_id, node.machine.master_epoch))
        return []

    def do_flush(self, command: Command) -> list[str]:
        for node in self._nodes(command):
            self.group.flush(node)
        return []

    def do_dial(self, command: Command) -> list[str]:
        (node,) = self._nodes(command)
        assert node.dials, f"b{node.broker_id} dials nobody now"
        self.group.dial(node)
        return []

    def do_deliver(self, command: Command) -> list[str]:
        wire = self._wire(command)
        lines: list[str] = []
        if command.option("to", "master") == "master":
            while wire.to_master:
                lines += self._from_replica(wire, wire.to_master[0])
                self.group.deliver_to_master(wire)
        if command.option("to", "replica") == "replica":
            while wire.to_replica:
                lines += self._from_master(wire, wire.to_replica[0])
                self.group.deliver_to_replica(wire)
        return lines + self._closed(wire)

    def do_cut(self, command: Command) -> list[str]:
        self.group.cut(self._wire(command))
        return []

    def do_crash(self, command: Command) -> list[str]:
        (node,) = self._nodes(command)
        kept = command.number("kept", -1)
        self.group.crash(node, kept if kept >= 0 else None)
        for wire in list(self.group.wires.values()):
            if not wire.open_at_master or not wire.open_at_replica:
                self.group.notice_close(wire)
        return []

    def do_start(self, command: Command) -> list[str]:
        (node,) = self._nodes(command)
        node.start()
        return []

    # What the controller does

    def do_process(self, command: Command) -> list[str]:
        broker, kind = command.words
        request = next(
            request for request in self.group.requests if request.node.broker_id == int(broker) and request.kind == kind
        )
        self.group.process(request)
        return [self._record()]

    def do_give_up(self, command: Command) -> list[str]:
        (node,) = self._nodes(command)
        request = next(
            each for each in self.group.requests if each.node is node and each.kind == "alter" and not each.abandoned
        )
        self.group.abandon(request)
        return []

    def do_answer(self, command: Command) -> list[str]:
        (node,) = self._nodes(command)
        self.group.deliver(next(each for each in self.group.answers if each.node is node))
        return self._sets(node)

    def do_lose_answer(self, command: Command) -> list[str]:
        (node,) = self._nodes(command)
        self.group.lose_answer(next(each for each in self.group.answers if each.node is node))
        return self._sets(node)

    # Time

    def do_tick(self, command: Command) -> list[str]:
        for _ in range(command.number("ms", TICK_MS) // TICK_MS):
            self.group.tick()
        return []

    def do_settle(self, command: Command) -> list[str]:
        self.group.settle(60)
        return []

    # Looking

    def do_state(self, command: Command) -> list[str]:
        nodes = self._nodes(command) if command.words else list(self.group.nodes.values())
        return [self._describe(node) for node in nodes]

    def do_waiting(self, command: Command) -> list[str]:
        lines = []
        for request in self.group.requests:
            wanted = f" {_set(request.proposal.members)} over {request.proposal.base_epoch}" if request.proposal else ""
            abandoned = ", nobody waits for the answer" if request.abandoned else ""
            lines.append(f"b{request.node.broker_id} asks {request.kind}{wanted}{abandoned}")
        return lines or ["nothing"]

    # Words

    def _nodes(self, command: Command) -> list[Node]:
        return [self.group[int(word)] for word in command.words]

    def _wire(self, command: Command) -> Wire:
        node = self.group[int(command.words[0])]
        return next(wire for wire in self.group.wires.values() if wire.replica is node)

    def _tell(self, nodes: list[Node]) -> list[str]:
        for node in nodes:
            self.group.push(node)
        return [
            f"b{node.broker_id} is {node.machine.role.value} in epoch {node.machine.master_epoch}" for node in nodes
        ]

    def _record(self) -> str:
        controller = self.group.controller
        return (
            f"controller: master b{controller.master_id} epoch={controller.master_epoch} "
            f"set={_set(controller.members)} version={controller.set_epoch}"
        )

    def _sets(self, node: Node) -> list[str]:
        mastership = node.machine.mastership
        if mastership is None:
            return []
        return [f"b{node.broker_id} set={_set(mastership.sync.local)} required={_set(mastership.sync.required)}"]

    def _describe(self, node: Node) -> str:
        if not node.alive:
            return f"b{node.broker_id} is down"
        machine = node.machine
        epochs = " ".join(f"{entry.epoch}@{entry.start_offset}" for entry in machine.epochs.entries) or "-"
        line = (
            f"b{node.broker_id} {machine.role.value} epoch={machine.master_epoch} end={machine.log.end_offset} "
            f"flushed={machine.log.flushed_offset} confirm={machine.confirm_offset} epochs={epochs}"
        )
        if machine.mastership is not None:
            sync = machine.mastership.sync
            line += f" acknowledged={machine.acknowledged_offset} set={_set(sync.local)} required={_set(sync.required)}"
        return line

    def _from_replica(self, wire: Wire, data: bytes) -> list[str]:
        lines = []
        for frame in deepcopy(wire.master.driver.channels.accepted_end(wire.number)).receive(data):
            if isinstance(frame, Handshake):
                lines.append(f"{_way(wire, up=True)} handshake of {frame.broker_id}")
            elif isinstance(frame, Ack):
                lines.append(f"{_way(wire, up=True)} ack {frame.offset}")
        return lines

    def _from_master(self, wire: Wire, data: bytes) -> list[str]:
        lines = []
        for frame in deepcopy(wire.replica.driver.channels.dialled_end(wire.number)).receive(data):
            if isinstance(frame, Reply):
                epochs = " ".join(f"{entry.epoch}@{entry.start_offset}" for entry in frame.entries)
                lines.append(f"{_way(wire)} epochs {epochs} end={frame.end_offset}")
            elif isinstance(frame, Piece):
                header = frame.header
                what = f"bytes {header.offset}..{header.offset + len(frame.body)}" if frame.body else "heartbeat"
                lines.append(
                    f"{_way(wire)} {what} epoch={header.epoch}@{header.epoch_start} confirm={header.confirm_offset}"
                )
        return lines

    def _closed(self, wire: Wire) -> list[str]:
        if wire.open_at_master and wire.open_at_replica:
            return []
        node = wire.replica if not wire.open_at_replica else wire.master
        closings = [each for each in self._caplog.messages if each.startswith("replication connection")]
        reason = closings[-1].partition(": ")[2]
        lines = [f"b{node.broker_id} closes: {reason}"]
        self.group.notice_close(wire)
        return lines


def _way(wire: Wire, *, up: bool = False) -> str:
    ends = (wire.replica, wire.master) if up else (wire.master, wire.replica)
    return f"b{ends[0].broker_id}->b{ends[1].broker_id}"


def _set(members: frozenset[int]) -> str:
    return "{" + ",".join(map(str, sorted(members))) + "}"
