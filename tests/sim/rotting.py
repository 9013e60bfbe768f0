"""Stories of rot: the logs, queues and indexes of one broker group on disks of which one rots, hundreds a minute.

Real stores, with the start, the scrubber and the repairs of the daemons; no roles, no clients. Messages are put, copied in parts,
synced, dispatched, read and looked for by key; machines lose power and processes die at any moment; and bits flip in any file of
one of three copies, often just before a start, an election, a copy or a read, when it matters most. Bits of the log flip only
where another member of the set has the byte durably, so there is never more than one damaged copy.

What is damaged is never served, nor taken over, and nobody is denied a message because of it: a read gives what was stored, or
fails, and it fails on the damaged copy alone. In the end everything is whole again, in place, and what was acknowledged is there.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from brokerd.replication.epochs.epoch_file import EPOCH_FILE, EpochFile
from brokerd.replication.epochs.epoch_list import EpochList
from brokerd.store.index.search import Question, Search
from brokerd.store.log.layout import file_name
from brokerd.store.store_reads import Suspicion
from remoting.errors import CorruptedFile, DamagedRecord, ProtocolError
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from tests.sim.rotting_copies import Copy
from tests.sim.world import Violation, World
from tests.unit.brokerd.repair.peers import Peers
from tests.unit.brokerd.store.stores import SETTINGS, draft

STEPS: Final = 90
_WEIGHTS: Final = {
    "put": 14.0,
    "copy": 16.0,
    "sync": 12.0,
    "dispatch": 10.0,
    "checkpoint": 3.0,
    "keep_up": 6.0,
    "scrub": 6.0,
    "read": 8.0,
    "look_for": 2.0,
    "rot": 7.0,
    "crash": 1.0,
    "kill": 1.0,
    "start": 6.0,
    "elect": 1.0,
    "leave": 1.0,
}
_TOPIC: Final = "TopicA"
_QUEUES: Final = 2
_TAGS: Final = ("t0", "t1", "t2")
_OFTEN, _OFTEN_SHARES = ("commitlog", "consumequeue", "index", ""), (5, 3, 2, 2)  # "": any of all kinds
_KEPT: Final = frozenset({EPOCH_FILE, "masterEpochSeen"})  # whose rot is that of the other light stories
_ROUNDS: Final = 80
_GARBLED: Final = 0.05  # of what is copied, on its way


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a master of that epoch wrote: where it is, and what it must be."""

    epoch: int
    queue_id: int
    body: bytes
    tag: str
    key: str
    begin: int
    end: int


class RotStory:
    """One story; `run` raises Violation."""

    def __init__(self, seed: int, *, steps: int = STEPS) -> None:
        self.seed = seed
        self.steps = steps
        self.world = World(seed)
        self.rng = Random(f"rot {seed}")
        self.did: Counter[str] = Counter()
        self.rotten: Counter[str] = Counter()  # bits that flipped, by kind of file
        peers = Peers({})
        self.copies = [Copy(self.world, f"b{n}", peers) for n in range(3)]
        self.victim = self.rng.choice(self.copies)
        self.members = list(self.copies)
        self.master: Copy | None = None
        self._led_in_life = 0
        self.epoch = 0
        self.acknowledged = 0  # up to there of the log
        self.sent: list[list[Sent]] = [[] for _ in range(_QUEUES)]  # what the present master's log has of each queue
        self._written: list[Sent] = []
        self._count = 0

    @property
    def trace(self) -> list[str]:
        return self.world.trace

    def run(self) -> None:
        """Tell it."""
        try:
            for copy in self.copies:
                copy.start()
            self._lead(self.copies[0])
            for name in self.rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=self.steps):
                self._happens(name)
            self._heal()
        except AssertionError as error:
            text = str(error) or repr(error)
            self.world.note(f"VIOLATION: {text}")
            raise Violation(f"rot seed {self.seed}: {text}") from error

    def _happens(self, name: str) -> None:
        copy = self.rng.choice(self.copies)
        copy.guarded(lambda: self._do(name, copy))()
        self.world.run(self.rng.uniform(0, 1.5))
        self._note_losses()
        self._look()

    def _do(self, name: str, copy: Copy) -> None:
        if getattr(self, name)(copy):
            self.did[name] += 1

    # ---- events; each says whether it took place

    def put(self, _: Copy) -> bool:
        master = self.master
        if master is None or not master.is_up:
            return False
        for _again in range(self.rng.choice((1, 1, 2, 6))):
            self._count += 1
            queue_id, tag = self.rng.randrange(_QUEUES), self.rng.choice(_TAGS)
            key = f"k{self._count}"
            body = b"message %05d " % self._count + b"." * self.rng.choice((20, 150, 600))
            properties = encode_properties({"TAGS": tag, "KEYS": key})
            (result,) = master.store.append_messages([draft(body, queue_id=queue_id, properties=properties)])
            assert result.queue_offset == len(self.sent[queue_id]), "the master gives out another queue offset"
            message = Sent(self.epoch, queue_id, body, tag, key, result.physical_offset, result.end_offset)
            self.sent[queue_id].append(message)
            self._written.append(message)
        return True

    def copy(self, copy: Copy) -> bool:
        """A replica takes a part of the master's log, behind what both have."""
        master = self.master
        if master is None or copy is master or not (master.is_up and copy.is_up) or not self._reconcile(copy, master):
            return False
        log, source = copy.store.commitlog, master.store.commitlog
        offset = log.end_offset
        if offset >= source.end_offset:
            return False
        found = master.epochs.find(offset)
        assert found is not None
        entry, end = found
        length = min(self.rng.choice((100, 700, 4000)), (end or source.end_offset) - offset)
        try:
            data = master.reads.read(offset, length)
        except CorruptedFile as error:
            self._blame(master, error)
            if error.damage is not None:
                master.store.tell_damage(Suspicion(error.damage.offset, size=error.damage.size))
            return False
        if entry.epoch > copy.epochs.last_epoch:
            copy.epochs.begin(entry.epoch, entry.start_offset)
            EpochFile(copy.disk).save_entries(tuple(copy.epochs.entries))
        if self.rng.random() < _GARBLED:
            self._garble(copy, offset, data)
            return True
        try:
            copy.store.append_replicated(offset, data)
        except DamagedRecord as error:
            raise AssertionError(f"{master.name} sends {copy.name} what is damaged: {error}") from error
        return True

    def _garble(self, copy: Copy, offset: int, data: bytes) -> None:
        """A bit flips on the way: the replica does not take the record, now or when the rest of it comes."""
        at = self.rng.randrange(len(data))
        wrong = data[:at] + bytes((data[at] ^ 1 << self.rng.randrange(8),)) + data[at + 1 :]
        with suppress(DamagedRecord, ProtocolError):
            copy.store.append_replicated(offset, wrong)
        copy.store.truncate(copy.store.commitlog.complete_offset)  # what a lost connection leaves begins anew
        copy.is_reconciled = False

    def _reconcile(self, copy: Copy, master: Copy) -> bool:
        """Cut what the present master's log does not have."""
        if copy.is_reconciled:
            return True
        if copy.store.suspicion is not None:
            if copy in self.members:
                return False  # nobody has decided without it yet
            copy.store.judged()
        log = copy.store.commitlog
        ends = log.end_offset, master.store.commitlog.end_offset
        common = copy.epochs.common_end(ends[0], master.epochs.entries, ends[1])
        if common is None:
            copy.store.reset(0)
            copy.epochs.replace(())
        else:
            if common < log.end_offset:
                copy.store.truncate(common)
            copy.epochs.cut(common)  # also an epoch that begins there and never got a byte
        EpochFile(copy.disk).save_entries(tuple(copy.epochs.entries))
        copy.is_reconciled = True
        return True

    def sync(self, copy: Copy) -> bool:
        if not copy.is_up:
            return False
        copy.flush()
        self._acknowledge()
        return True

    def keep_up(self, _: Copy) -> bool:
        """Everybody takes all that there is."""
        for copy in self.copies:
            copy.guarded(lambda copy=copy: self._take_all(copy))()
        return True

    def _take_all(self, copy: Copy) -> None:
        for event in (self.copy, self.copy, self.sync, self.dispatch):
            event(copy)

    def _acknowledge(self) -> None:
        before = self.acknowledged
        self._acknowledge_now()
        if self.acknowledged > before:
            self.world.note(f"acknowledged up to {self.acknowledged}: {self._state()}")

    def _acknowledge_now(self) -> None:
        """What all members have durably is acknowledged; who has all of that is a member again."""
        master = self.master
        if master is None or not master.is_up:
            return
        in_step = [each for each in self.copies if each.is_up and each.is_reconciled]
        if all(each in in_step for each in self.members):
            durable = min(each.durable for each in self.members)
            ends = [
                queue[-1].end
                for queue in ([each for each in queue if each.end <= durable] for queue in self.sent)
                if queue
            ]
            self.acknowledged = max(self.acknowledged, *ends, 0)
        for each in in_step:
            if each not in self.members and each.durable >= self.acknowledged:
                each.lost = False
                self.members.append(each)

    def dispatch(self, copy: Copy) -> bool:
        if not copy.is_up or not copy.is_reconciled:
            return False
        try:
            copy.store.dispatch(min(self.acknowledged, copy.store.commitlog.complete_offset))
        except CorruptedFile as error:
            self._blame(copy, error)
            if error.damage is not None:
                copy.store.tell_damage(Suspicion(error.damage.offset))
        index = copy.store.index
        if index is not None:
            try:
                index.take(copy.store.dispatch_offset, 1 << 14)
            except CorruptedFile as error:
                self._blame(copy, error)
                if error.damage is not None:
                    copy.store.tell_damage(Suspicion(error.damage.offset))
        return True

    def checkpoint(self, copy: Copy) -> bool:
        if copy.is_up:
            copy.store.checkpoint(closing=self.rng.random() < 0.4)
        return copy.is_up

    def scrub(self, copy: Copy) -> bool:
        if copy.is_up:
            copy.scrub()
        return copy.is_up

    def read(self, copy: Copy) -> bool:
        """A consumer reads some of a queue, perhaps of one tag alone."""
        queue_id = self.rng.randrange(_QUEUES)
        if not copy.is_up or not copy.is_reconciled or not copy.store.max_offset(_TOPIC, queue_id):
            return False
        first = self.rng.randrange(copy.store.max_offset(_TOPIC, queue_id))
        with suppress(CorruptedFile):  # refused, and told to the scrubber
            self._read(copy, queue_id, first, self.rng.choice((None, *_TAGS)))
        return True

    def _read(self, copy: Copy, queue_id: int, first: int, tag: str | None) -> int:
        """Read from an offset on, and say where to go on. Raises CorruptedFile, on the damaged copy alone."""
        codes = None if tag is None else {_code(tag)}
        try:
            result = copy.store.read_messages(_TOPIC, queue_id, first, 6, 1 << 20, codes)
        except CorruptedFile as error:
            self._blame(copy, error)
            raise
        right = [
            (at, each.body)
            for at, each in enumerate(self.sent[queue_id][first : result.next_offset], first)
            if tag is None or each.tag == tag
        ]
        given = [(record.queue_offset, record.body) for record in map(decode_record, result.records)]
        assert given == right, (
            f"{copy.name} gives {_short(given)} of queue {queue_id} from {first} on, of tag {tag}, and {_short(right)} was stored"
        )
        return result.next_offset

    def look_for(self, copy: Copy) -> bool:
        """Somebody asks for a message by its key: it is the right one, or none."""
        known = [each for queue in self.sent for each in queue if each.end <= self.acknowledged]
        if not copy.is_up or not copy.is_reconciled or not known:
            return False
        message = self.rng.choice(known)
        found = self._found(copy, message)
        assert found in ([], [message.body]), f"{copy.name} finds {found} by {message.key}"
        return True

    def _found(self, copy: Copy, message: Sent) -> list[bytes]:
        index = copy.store.index
        assert index is not None
        search = Search(index, copy.store.read_physical, Question(_TOPIC, message.key, 10, 0, 1 << 50))
        while not search.step(1000):
            pass
        return [decode_record(each).body for each in search.records()]

    def rot(self, _: Copy) -> bool:
        """A bit flips, often at the moment that matters: then what makes it matter comes at once."""
        if not self._flip():
            return False
        then = self.rng.choice(("", "", "", "start", "crash", "crash", "elect", "copy", "read"))
        victim = self.victim
        if then in ("start", "crash") and victim.is_up:
            victim.end(f"ends ({then})", with_power=then == "crash")
            victim.start()
            self._note_losses()
        elif then == "elect":
            self.elect(victim)
        elif then == "copy":
            if victim in self.members and victim.is_up:
                self._lead(victim)
            for each in self.copies:
                self.copy(each)
        elif then == "read":
            for _again in range(4):
                self.read(victim)
        return True

    def _flip(self) -> bool:
        disk, rng = self.victim.disk, self.rng
        paths = [path for path in sorted(disk.files) if path not in _KEPT and disk.files[path].platter.held]
        kinds = sorted({path.split("/")[0] for path in paths})
        if not kinds:
            return False
        kind = next((each for each in rng.choices(_OFTEN, _OFTEN_SHARES, k=2) if each in kinds), rng.choice(kinds))
        path = rng.choice([path for path in paths if path.split("/")[0] == kind])
        file = disk.files[path]
        for _again in range(6):
            position = rng.randrange(len(file.platter.held))
            if position >= len(file.seen.held) or any(
                isinstance(each, int) or each[0] <= position < each[0] + len(each[1]) for each in file.unsynced
            ):
                continue
            if kind == "commitlog" and not self._has_copy(path, position):
                continue
            disk.flip_bit(path, position, rng.randrange(8))
            self.rotten[kind] += 1
            self.world.note(f"{self.victim.name} rots: {path} at {position}")
            return True
        return False

    def _has_copy(self, path: str, position: int) -> bool:
        """Whether another member has the byte durably, which is acknowledged."""
        if self.victim in self.members and len(self.members) < 2:
            return False
        if int(path.split("/")[1]) + position >= self.acknowledged:
            return False
        right = self.victim.disk.files[path].platter.read(position, 1)
        others = [each.disk.files.get(path) for each in self.members if each is not self.victim]
        return any(file is not None and file.platter.held[position : position + 1] == right for file in others)

    def crash(self, copy: Copy) -> bool:
        return self._end(copy, with_power=True)

    def kill(self, copy: Copy) -> bool:
        return self._end(copy, with_power=False)

    def _end(self, copy: Copy, *, with_power: bool) -> bool:
        if not copy.is_running:
            return False
        copy.end("loses power" if with_power else "is killed", with_power=with_power)
        return True

    def start(self, copy: Copy) -> bool:
        if copy.is_running:
            return False
        self.world.note(f"{copy.name} starts")
        copy.start()
        return True

    def leave(self, copy: Copy) -> bool:
        """The master goes on without a member that is away; while one copy is damaged, there is another one in the set."""
        master = self.master
        if master is None or not master.is_up or copy is master or copy.is_up or copy not in self.members:
            return False
        if len(self.members) == 2 and self.victim in self.members and self.victim is not copy and self.rotten:
            return False
        self.members.remove(copy)
        self._acknowledge()
        return True

    def elect(self, copy: Copy) -> bool:
        if copy is self.master or copy not in self.members or not copy.is_up or copy.lost:
            return False
        self._lead(copy)
        return True

    def _lead(self, copy: Copy) -> None:
        """A new epoch begins where the log of its master ends; what others have behind that is cut."""
        if copy.lost or not copy.is_up:
            return
        if self.master is not None and self.master.is_up:
            self.master.store.set_appendable(False)
        self.epoch += 1
        self.master, self._led_in_life = copy, copy.life
        store = copy.store
        store.elected()
        store.truncate(store.commitlog.complete_offset)
        copy.flush()
        end = store.commitlog.end_offset
        assert end >= self.acknowledged, f"{copy.name} leads with a log that ends at {end} of {self.acknowledged}"
        copy.epochs.begin(self.epoch, end)
        EpochFile(copy.disk).save_entries(tuple(copy.epochs.entries))
        self.sent = [
            [each for each in self._written if each.queue_id == n and each.end <= end and _is_of(each, copy.epochs)]
            for n in range(_QUEUES)
        ]
        for each in self.copies:
            each.is_reconciled = each is copy
        try:
            store.set_appendable(True)
        except CorruptedFile as error:
            self._blame(copy, error)
            copy.end(f"stops: {error}")
            return
        self.world.note(f"{copy.name} leads epoch {self.epoch} from {end} on")

    # ---- what must be true

    def _blame(self, copy: Copy, error: CorruptedFile) -> None:
        is_damaged = copy is self.victim and self.rotten.total() > 0
        assert is_damaged, f"{copy.name}, which is well, finds damage: {error}"

    def _note_losses(self) -> None:
        """Who started without the end of its log leaves the set, unless nobody else is in it; a dead master leads no more."""
        for copy in self.copies:
            if copy.refusal is not None:
                self._blame(copy, copy.refusal)
            if copy.is_up and copy.lost and copy in self.members and len(self.members) > 1:
                self.members.remove(copy)
        if self.master is not None and not (self.master.is_up and self.master.life == self._led_in_life):
            self.master = None

    def _look(self) -> None:
        for copy in self.copies:
            if not copy.is_up:
                continue
            if copy in self.members and not copy.lost:
                end = copy.store.commitlog.end_offset
                assert end >= self.acknowledged, f"{copy.name} is in the set with {end} of {self.acknowledged}"
            if copy.lost or not copy.is_reconciled:
                continue
            for queue_id, queue in enumerate(self.sent):
                shown = sum(each.end <= min(copy.store.dispatch_offset, self.acknowledged) for each in queue)
                end = copy.store.max_offset(_TOPIC, queue_id)
                assert end >= shown, f"queue {queue_id} of {copy.name} ends at {end} of {shown}"

    # ---- the end

    def _heal(self) -> None:
        """Nothing goes wrong any more: all copies become whole, and have everything."""
        self.world.note("everything is healed")
        for copy in self.copies:
            copy.disk.no_more_faults()
        for _ in range(_ROUNDS):
            for copy in self.copies:
                if not copy.is_running:
                    copy.start()
            self.world.run(5)
            self._replace_who_refuses()
            self._note_losses()
            if self.master is None:
                self._elect_somebody()
            for copy in self.copies:
                self._take_all(copy)
                self.scrub(copy)
            if self._is_whole():
                break
        assert self._is_whole(), "the group does not become whole: " + self._state()
        self._check_all()

    def _replace_who_refuses(self) -> None:
        """Without a checkpoint nobody can tell what a crash left of a log whose end nobody else ever had."""
        victim = self.victim
        is_right = victim.refusal is not None and self.rotten["checkpoint"] > 0
        if is_right and not victim.is_running and any(each is not victim and each.is_up for each in self.members):
            if victim in self.members:
                self.members.remove(victim)
            victim.replace()
            self.did["replaced"] += 1

    def _elect_somebody(self) -> None:
        ready = [each for each in self.members if each.is_up and not each.lost]
        if ready:
            self._lead(max(ready, key=lambda each: each.store.commitlog.end_offset))
            return
        for copy in self.members:  # the last one could not be mended when it started
            if copy.is_up:
                copy.end("is started again")

    def _state(self) -> str:
        return ", ".join(
            f"{each.name} {'leads ' if each is self.master else ''}{self._state_of(each)}" for each in self.copies
        )

    @staticmethod
    def _state_of(copy: Copy) -> str:
        if not copy.is_up:
            return f"refuses: {copy.refusal}"
        store = copy.store
        damaged = list(copy.scrubber.repairer.ledger.unrepaired)
        return f"has {store.commitlog.end_offset}, dispatched {store.dispatch_offset}, damaged at {damaged}"

    def _is_whole(self) -> bool:
        master = self.master
        if master is None or not all(each.is_up and each.is_reconciled for each in self.copies):
            return False
        end = master.store.commitlog.end_offset
        indexed = [(each.store.index.offset, each.store.dispatch_offset) for each in self.copies if each.store.index]
        return (
            all(each.durable == end for each in self.copies)
            and all(message.end <= self.acknowledged for queue in self.sent for message in queue)
            and all(self.acknowledged <= each.store.dispatch_offset for each in self.copies)
            and all(offset == dispatched for offset, dispatched in indexed)
            and all(each.scrubber.rounds >= 2 and not each.scrubber.repairer.ledger.unrepaired for each in self.copies)
            and all(self._records(each) == self._records(master) for each in self.copies)
        )

    def _records(self, copy: Copy) -> list[bytes]:
        """The messages as they are on the disk."""
        size = SETTINGS.segment_size_bytes
        files = copy.disk.files
        return [
            files[f"commitlog/{file_name(each.begin - each.begin % size)}"].platter.read(
                each.begin % size, each.end - each.begin
            )
            for queue in self.sent
            for each in queue
        ]

    def _check_all(self) -> None:
        for copy in self.copies:
            for queue_id, queue in enumerate(self.sent):
                for tag in (None, *_TAGS):
                    at = 0
                    while at < len(queue):
                        at = self._read(copy, queue_id, at, tag)
                for message in queue:
                    found = self._found(copy, message)
                    assert found == [message.body], f"{copy.name} finds {found} by {message.key}"


def _is_of(message: Sent, epochs: EpochList) -> bool:
    """Whether a log that these epochs wrote has the message, if it is long enough."""
    found = epochs.find(message.begin)
    return found is not None and found[0].epoch == message.epoch


def _short(messages: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return [(offset, body[:13]) for offset, body in messages]


def _code(tag: str) -> int:
    """The tags code of a tag, as in a unit: Java's hash of it."""
    code = 0
    for character in tag:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code
