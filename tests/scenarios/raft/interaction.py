"""A Raft group that scenario files drive by hand, one message and one write at a time. The log files are real, the disks faulty
twins, the network is a list of messages in flight."""

from __future__ import annotations

import random
from collections.abc import Iterable

from controllerd.raft import proposals
from controllerd.raft.codec import decode_configuration
from controllerd.raft.core import RaftCore
from controllerd.raft.leading import CoreSettings
from controllerd.raft.log_file import RaftLogFile
from controllerd.raft.membership import ChangeKind, MemberChange, Transition
from controllerd.raft.messages import Entry, EntryKind, HardState, Message, Persist, Ready, Snapshot
from controllerd.raft.quorum import Configuration
from tests.scenarios.runner import Command
from tests.support.disks import FaultyDisk


class Node:
    """One core with its disk and a state machine that remembers the commands."""

    def __init__(self, name: str, voters: tuple[str, ...], settings: CoreSettings) -> None:
        self.name = name
        self.voters = voters
        self.settings = settings
        self.disk = FaultyDisk(random.Random(name))
        self.applied: list[str] = []
        self.writing: Ready | None = None
        self.start()

    def start(self) -> None:
        """Open the files and begin as a follower."""
        self.writing = None
        self.file = RaftLogFile(self.disk, "scenario", self.name, self.voters)
        recovered = self.file.open()
        snapshot = recovered.log.snapshot
        self.applied = snapshot.data.decode().split() if snapshot else []
        self.core = RaftCore(
            self.name,
            recovered.founders,
            recovered.log,
            recovered.hard_state,
            self.settings,
            random.Random(self.name),
        )


class Interaction:
    """Executes the commands of a scenario file."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.in_flight: list[Message] = []

    def execute(self, command: Command) -> str:
        """Run one command and return what happened."""
        handler = getattr(self, "do_" + command.name.replace("-", "_"))
        lines = handler(command)
        return "\n".join(lines or [])

    # Set-up

    def do_add_nodes(self, command: Command) -> list[str]:
        names = command.words
        settings = CoreSettings(
            election_ticks=command.number("election", 3),
            max_inflight_messages=command.number("inflight", 64),
            max_append_bytes=command.number("append-bytes", 1 << 20),
            promote_lag_entries=command.number("promote-lag", 0),
        )
        voters = tuple(command.list("voters", ",".join(names)))
        for name in names:
            self.nodes[name] = Node(name, voters, settings)
        return []

    def do_set_log(self, command: Command) -> list[str]:
        """Give a node that has not run yet a log with the given terms and put it into a term."""
        node = self.nodes[command.words[0]]
        terms = [int(term) for term in command.list("terms")]
        entries = tuple(Entry(index, term, f"{term}.{index}".encode()) for index, term in enumerate(terms, 1))
        term = command.number("term", terms[-1] if terms else 0)
        node.file.persist(Persist(HardState(term), None, entries))
        node.start()
        return [f"{node.name} term={node.core.term} {self._log_text(node)}"]

    def do_set_randomized_election_timeout(self, command: Command) -> list[str]:
        self.nodes[command.words[0]].core._randomized_election_ticks = command.number("ticks")
        return []

    # Input

    def do_change(self, command: Command) -> list[str]:
        """Change the membership: `change n1 add-voter:n4 remove:n2`."""
        name, *words = command.words
        changes = [MemberChange(ChangeKind(kind), node) for kind, node in (word.split(":") for word in words)]
        transition = Transition(command.option("transition", "auto"))
        return self._proposed_change(
            name, proposals.propose_change(self.nodes[name].core.serving(), changes, transition).index
        )

    def do_leave_joint(self, command: Command) -> list[str]:
        (name,) = command.words
        return self._proposed_change(name, proposals.propose_leave_joint(self.nodes[name].core.serving()).index)

    def do_transfer(self, command: Command) -> list[str]:
        name, target = command.words
        proposals.transfer(self.nodes[name].core.serving(), target)
        return [f"{name} hands over to {self.nodes[name].core.transferee}"]

    def do_forget_leader(self, command: Command) -> list[str]:
        return self._changing(command.words, lambda node: node.core.forget_leader())

    def do_step_down(self, command: Command) -> list[str]:
        return self._changing(command.words, lambda node: node.core.step_down())

    def do_report_snapshot(self, command: Command) -> list[str]:
        name, other, fate = command.words
        self.nodes[name].core.report_snapshot(other, delivered={"delivered": True, "lost": False}[fate])
        return self._progress(name)

    def do_campaign(self, command: Command) -> list[str]:
        return self._changing(command.words, lambda node: node.core.campaign())

    def do_tick(self, command: Command) -> list[str]:
        def tick(node: Node) -> None:
            for _ in range(command.number("n", 1)):
                node.core.tick()

        return self._changing(command.words or self.nodes, tick)

    def do_propose(self, command: Command) -> list[str]:
        name, data = command.words
        proposed = proposals.propose(self.nodes[name].core.serving(), data.encode())
        return [f"{name} proposed {data} at {proposed.term}/{proposed.index}"]

    def do_read(self, command: Command) -> list[str]:
        (name,) = command.words
        return [f"{name} reads with context {self.nodes[name].core.read_index()}"]

    def do_report_unreachable(self, command: Command) -> list[str]:
        name, other = command.words
        self.nodes[name].core.report_unreachable(other)
        return self._progress(name)

    def do_compact(self, command: Command) -> list[str]:
        node = self.nodes[command.words[0]]
        node.file.compact(node.core.compact(" ".join(node.applied).encode(), command.number("keep", 0)))
        return [f"{node.name} {self._log_text(node)}"]

    def do_crash(self, command: Command) -> list[str]:
        """Power loss and restart: what was not synced is gone."""
        for name in command.words:
            self.nodes[name].disk.crash()
            self.nodes[name].start()
        return self.do_state(command)

    # Output

    def do_process_ready(self, command: Command) -> list[str]:
        lines: list[str] = []
        for name in command.words or self.nodes:
            lines += self._process(self.nodes[name])
        return lines

    def do_begin_write(self, command: Command) -> list[str]:
        """Take what is ready, send what may leave at once, and let the write take its time."""
        node = self.nodes[command.words[0]]
        node.writing = ready = node.core.ready()
        self.in_flight += ready.send_now
        return [f"{node.name} ready:", *(f"  {line}" for line in _ready_text(ready))]

    def do_end_write(self, command: Command) -> list[str]:
        """The write that was begun is durable."""
        node = self.nodes[command.words[0]]
        ready, node.writing = node.writing, None
        assert ready is not None
        return [f"{node.name} wrote", *self._finish(node, ready)]

    def do_deliver(self, command: Command) -> list[str]:
        """Deliver what is in flight to the named nodes; `drop` loses messages to or from the listed ones, `kind` selects, and
        `skip` lets the first ones wait."""
        return self._deliver(
            set(command.words or self.nodes),
            set(command.list("drop", "")),
            set(command.list("kind", "")),
            command.number("skip", 0),
        )

    def do_stabilize(self, command: Command) -> list[str]:
        """Process and deliver among the named nodes until nothing happens any more."""
        names = command.words or list(self.nodes)
        dropped = set(command.list("drop", ""))
        lines: list[str] = []
        for _ in range(100):
            news: list[str] = []
            for name in names:
                while self.nodes[name].core.has_ready():
                    news += self._process(self.nodes[name])
            news += self._deliver(set(names), dropped, set())
            if not news:
                break
            lines += news
        else:
            raise AssertionError("the group does not come to rest")
        return lines if command.options.get("quiet") is None else self.do_state(Command(0, "state", list(names)))

    # Inspection

    def do_state(self, command: Command) -> list[str]:
        return [self._state_text(self.nodes[name]) for name in command.words or self.nodes]

    def do_raft_log(self, command: Command) -> list[str]:
        return [f"{name} {self._log_text(self.nodes[name])}" for name in command.words or self.nodes]

    def do_applied(self, command: Command) -> list[str]:
        return [f"{name}: {' '.join(self.nodes[name].applied)}" for name in command.words or self.nodes]

    def do_members(self, command: Command) -> list[str]:
        return [
            f"{name} {configuration_text(self.nodes[name].core.configuration)}" for name in command.words or self.nodes
        ]

    def do_progress(self, command: Command) -> list[str]:
        return self._progress(command.words[0])

    def do_in_flight(self, command: Command) -> list[str]:
        return [_message_text(message) for message in self.in_flight] or ["nothing"]

    # Helpers

    def _changing(self, names: Iterable[str], change: object) -> list[str]:
        lines = []
        for name in names:
            node = self.nodes[name]
            before = self._state_text(node)
            change(node)  # type: ignore[operator]
            if self._state_text(node) != before:
                lines.append(self._state_text(node))
        return lines

    def _process(self, node: Node) -> list[str]:
        if not node.core.has_ready():
            return []
        ready = node.core.ready()
        lines = [f"{node.name} ready:", *(f"  {line}" for line in _ready_text(ready))]
        self.in_flight += ready.send_now
        return lines + self._finish(node, ready)

    def _finish(self, node: Node, ready: Ready) -> list[str]:
        lines: list[str] = []
        if ready.persist is not None:
            node.file.persist(ready.persist)
        self.in_flight += ready.send_after_persist
        if ready.restore is not None:
            node.applied = ready.restore.data.decode().split()
        node.applied += [entry.data.decode() for entry in ready.committed if entry.kind is EntryKind.DECISION]
        before, members = self._state_text(node), node.core.configuration
        node.core.advance()
        if node.core.configuration != members:
            lines.append(f"  members {configuration_text(node.core.configuration)}")
        if self._state_text(node) != before:
            lines.append(f"  then {self._state_text(node)}")
        return lines

    def _proposed_change(self, name: str, index: int) -> list[str]:
        (entry,) = self.nodes[name].core.log.slice(index, index + 1, 1 << 30)
        return [f"{name} proposed {_entry_text(entry)}"]

    def _deliver(self, names: set[str], dropped: set[str], kinds: set[str], skip: int = 0) -> list[str]:
        lines: list[str] = []
        kept: list[Message] = []
        batch, self.in_flight = self.in_flight, []
        for message in batch:
            if kinds and message.kind.name.lower() not in kinds:
                kept.append(message)
            elif skip and message.to in names:
                skip -= 1
                kept.append(message)
            elif {message.sender, message.to} & dropped:
                lines.append(f"lost      {_message_text(message)}")
            elif message.to in names:
                lines.append(f"delivered {_message_text(message)}")
                node = self.nodes[message.to]
                before = self._state_text(node)
                node.core.step(message)
                if self._state_text(node) != before:
                    lines.append(f"  {self._state_text(node)}")
            else:
                kept.append(message)
        self.in_flight = kept + self.in_flight
        return lines

    def _progress(self, name: str) -> list[str]:
        return [
            f"{name}->{other} {progress.state} match={progress.match} next={progress.next_index}"
            + (f" inflight={len(progress.inflights)}" if len(progress.inflights) else "")
            + (" paused" if progress.is_paused else "")
            for other, progress in self.nodes[name].core.progress.items()
            if other != name
        ]

    def _state_text(self, node: Node) -> str:
        core = node.core
        return (
            f"{node.name} {core.role} term={core.term} vote={core.vote or '-'} leader={core.leader or '-'} "
            f"commit={core.log.committed} last={core.log.last_term}/{core.log.last_index}"
        )

    def _log_text(self, node: Node) -> str:
        log = node.core.log
        start = f"[{log.compacted_term}/{log.compacted_index}] " if log.compacted_index else ""
        return "log " + start + " ".join(map(_entry_text, log.slice(log.first_index, log.last_index + 1, 1 << 30)))


def _ready_text(ready: Ready) -> list[str]:
    lines = []
    if ready.send_now:
        lines += ["send now:", *(f"  {_message_text(message)}" for message in ready.send_now)]
    if ready.persist:
        state = ready.persist.hard_state
        lines.append(f"persist: term={state.term} vote={state.vote or '-'} commit={state.commit}")
        if ready.persist.snapshot:
            lines.append(f"  {_snapshot_text(ready.persist.snapshot)}")
        if ready.persist.entries:
            lines.append("  " + " ".join(map(_entry_text, ready.persist.entries)))
    if ready.send_after_persist:
        lines += ["send then:", *(f"  {_message_text(message)}" for message in ready.send_after_persist)]
    if ready.restore:
        lines.append(f"restore: {_snapshot_text(ready.restore)}")
    if ready.committed:
        lines.append("apply: " + " ".join(map(_entry_text, ready.committed)))
    lines += [f"read {read.context} at index {read.index}" for read in ready.reads]
    return lines or ["(state only)"]


def configuration_text(configuration: Configuration) -> str:
    """Who belongs to the group, in one line."""
    parts = ["voters=" + ",".join(configuration.voters)]
    for name in ("outgoing", "learners", "learners_next", "retired"):
        if names := getattr(configuration, name):
            parts.append(f"{name}=" + ",".join(names))
    if configuration.is_joint:
        parts.append("leaves by itself" if configuration.auto_leave else "leaves when told")
    parts += [f"{node}@{address}" for node, address in configuration.addresses]
    return "(" + " ".join(parts) + ")"


def _entry_text(entry: Entry) -> str:
    if entry.kind is EntryKind.MEMBERSHIP:
        text = configuration_text(decode_configuration(entry.data))
    else:
        text = entry.data.decode() if entry.kind is EntryKind.DECISION else "EMPTY"
    return f"{entry.term}/{entry.index}:{text}"


def _snapshot_text(snapshot: Snapshot) -> str:
    members = configuration_text(snapshot.configuration).strip("()")
    return f"snapshot {snapshot.term}/{snapshot.index} {members}"


def _message_text(message: Message) -> str:
    parts = [f"{message.sender}->{message.to} {message.kind.name} term={message.term}"]
    if message.log_term or message.index:
        parts.append(f"log={message.log_term}/{message.index}")
    is_ballot = "VOTE" in message.kind.name
    if message.commit:
        parts.append(f"decided={message.reject_hint}/{message.commit}" if is_ballot else f"commit={message.commit}")
    if message.reject:
        parts.append("REFUSED" + (f" hint={message.reject_hint}" if message.reject_hint and not is_ballot else ""))
    if message.forced:
        parts.append("forced")
    if message.context:
        parts.append(f"context={message.context}")
    if message.entries:
        parts.append("[" + " ".join(map(_entry_text, message.entries)) + "]")
    if message.snapshot:
        parts.append(_snapshot_text(message.snapshot))
    return " ".join(parts)
