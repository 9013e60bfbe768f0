"""The thread beside a broker's loop that takes sends (`brokerd/native/carrier.c`, `lane.c`), and the loop's side of it
(`carrier.py`, `lane.py`): in steps of the world, which come whenever the seed has them come.

What it writes goes to the simulated disk, and what it answers to the simulated network. It lays out with the loop's own kernel.
Between two steps the log's file may have what nobody was answered, and what the loop does not know of. A step that has begun is
done before anything else of the broker's, as whoever takes the lane back waits for that.
"""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from brokerd.native.lane import Done
from brokerd.native.stays import Over, Waiting
from brokerd.sending.boundary import SendKernel, Source, Stop
from brokerd.store.run import Run
from remoting import frame
from remoting.errors import StorageError
from remoting.transport.carrying import Lender
from remoting.transport.connection import RemotingConnection

if TYPE_CHECKING:
    from tests.sim.lent_groups import LendingBroker
    from tests.sim.wires import Wire

_MOST_SENT: Final = 8  # frames of one connection at a time
_MOST_LEFT_BYTES: Final = 1 << 17
_MOST_WAITING: Final = 6  # answers of one connection that wait for the disk
_STEP_MS: Final = 0.12  # most that the thread takes to its next step
_HEARD_MS: Final = 0.15  # most that the loop takes to hear of it
_LOOK_S: Final = 0.06
_SHORT: Final = 0.02  # of what is written to sockets: they take a part


class LentRun:
    """`lent.LentKernel`: what is lent of the loop's kernel is the kernel itself, and the run."""

    def __init__(self, kernel: SendKernel) -> None:
        self.kernel = kernel
        self.run: Run | None = None

    def lend(self, run: Run) -> int:
        assert not run.size
        assert self.run is None, "it is lent already"
        self.run = run
        return 1

    def take_back(self, run: Run, *, has_failed: bool) -> None:
        assert self.run is run, "it was not lent"
        self.run = None


class _Mark:
    """A run as it is now, to put it back to that."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._counts = len(run.records), len(run.parts), len(run.entries)
        self._entries = run.entries
        self._end, self._folded = run.end_offset, run.folded
        self._taken, self._in_c = dict(run.taken), list(run.taken.in_c)

    def undo(self) -> None:
        run = self._run
        records, parts, entries = self._counts
        del run.records[records:], run.parts[parts:]
        run.entries = self._entries
        del run.entries[entries:]
        run.end_offset, run.folded = self._end, self._folded
        run.taken.clear()
        run.taken.update(self._taken)
        run.taken.in_c[:] = self._in_c


@dataclass(eq=False)
class _Sender:
    """A connection that stays; what was read of it, and what waits to be sent."""

    connection: RemotingConnection
    wire: Wire
    told: Callable[[int], None]
    read: bytes
    frames: int = 0
    frames_seen: int = -1  # when it was looked last whether it sends
    rest: bytes = b""  # what the socket did not take: the loop's, with the connection
    waiting: deque[Waiting] = field(default_factory=deque)
    is_wanted: bool = False
    is_over: bool = False
    is_behind: bool = False  # there is more to take of what was read


class _Answer(NamedTuple):
    sender: _Sender
    answers: bytes
    requests: int
    end: int


class LaneSteps:
    """`lent.Lane`, as far as the loop has it."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self.is_lent = self.is_missed = self.is_full = False
        self.descriptor = self.file_begin = 0
        self.waits = False
        self.until_ms = 0.0
        self.frames = self.passes = self.tried_end = self.error = 0

    def lend(self, areas_at: int, descriptor: int, file_begin: int, for_ns: int, syncs_at: int = 0) -> None:
        assert not self.is_lent, "it is lent already"
        self.is_lent, self.is_full = True, False
        self.descriptor, self.file_begin, self.waits = descriptor, file_begin, bool(syncs_at)
        self.until_ms = self._beside.now_ms() + for_ns / 1e6
        self.frames = self.passes = self.tried_end = self.error = 0
        self._beside.was_lent()

    def take_back(self) -> Done:
        assert self.is_lent, "it was not lent"
        self.is_lent = False
        self._beside.counts["taken back"] += 1
        return Done(self.frames, self.passes, 1, self.tried_end, self.error)

    def waited(self) -> Iterable[tuple[float, int]]:
        return ()

    @property
    def has_news(self) -> bool:
        return bool(self.frames or self.error)


class Beside:
    """`lent.LentTo`, and the thread. `counts` has what was done."""

    def __init__(self, broker: LendingBroker, lent: LentRun, counts: Counter[str]) -> None:
        self.lane_listener: Callable[[], None] | None = None
        self.waiting_listener: Callable[[Lender, Waiting], None] | None = None
        self.counts = counts
        self.lane = LaneSteps(self)
        self._broker, self._lent = broker, lent
        self._rng = broker.world.random(f"thread beside {broker.name}, life {broker.life}")
        self._put = 0
        self._senders: dict[Lender, _Sender] = {}  # the loop's
        self._room: list[_Sender] = []  # the thread's
        self._pieces: deque[_Sender | tuple[_Sender, bytes]] = (
            deque()
        )  # for the thread: who stays, and what is passed on
        self._to_answer: list[_Answer] = []  # taken, and in the log's file
        self._over: deque[Over] = deque()
        self._is_due = self._is_heard = self._looks = False

    def now_ms(self) -> float:
        return self._broker.world.now_ms

    @property
    def lent_run(self) -> Run:
        """The present one."""
        assert self._lent.run is not None
        return self._lent.run

    @property
    def holds_unanswered(self) -> bool:
        """Whether something is in the log's file of which nobody was told."""
        return bool(self._to_answer)

    @property
    def holds_waiting(self) -> bool:
        """Whether answers wait here for the disk."""
        return any(sender.waiting for sender in self._room)

    # ---- the loop: `lent.LentTo`

    def have_sender(self, connection: RemotingConnection, told: Callable[[int], None]) -> bool:
        descriptor, _, begun = connection.go_away(self._put, _MOST_LEFT_BYTES)
        if descriptor < 0:
            return False
        self._put += 1
        connection.keep_lent(self._put)
        sender = _Sender(connection, self._broker.wires[descriptor], told, begun)
        sender.wire.reads_beside = self._wake
        self._senders[connection] = sender
        self._pieces.append(sender)
        self._wake()
        self._look_in_time()
        self.counts["stays"] += 1
        return True

    @property
    def has_senders(self) -> bool:
        return bool(self._senders)

    def recall_senders(self) -> None:
        for sender in self._senders.values():
            sender.is_wanted = True
        self._wake()

    def finish_senders(self) -> None:
        """Nobody waits for a peer or the disk in there."""
        if self._senders:
            self.recall_senders()
            self._answer_taken()
            self._carry()
            self._let_go()
            self._settle()

    finish_all = finish_senders

    def waiting_senders(self) -> tuple[int, int]:
        waiting = [each for sender in self._senders.values() for each in sender.waiting]
        return len(waiting), min((each.since_ns for each in waiting), default=0)

    def was_lent(self) -> None:
        self.counts["lent"] += 1
        if self.lane.is_missed:
            self.lane.is_missed = False
            self._wake()

    # ---- the loop: `carrying.Carrier`

    def keeps(self, lender: Lender, ticket: int) -> bool:
        self._settle()
        sender = self._senders.get(lender)
        if sender is None:
            return False
        self._pieces.append((sender, b"".join(lender.take_out())))
        self._wake()
        return True

    def finish(self, ticket: int) -> None:
        self.finish_senders()

    # ---- the loop: what is done

    def _heard(self) -> None:
        self._is_heard = False
        try:
            if self.lane_listener is not None:
                self.lane_listener()
        finally:
            self._settle()

    def _settle(self) -> None:
        """See who is over; what comes of that is not at once, as who waits here may cut the log."""
        for lender, sender in list(self._senders.items()):
            if not sender.is_over:
                continue
            del self._senders[lender]
            sender.wire.reads_beside = None
            if sender.rest:
                lender.give_back(sender.rest)
            for waiting in sender.waiting:
                assert self.waiting_listener is not None
                self.waiting_listener(lender, waiting)
                self.counts["answers came back"] += 1
            over = Over(lender, partial(sender.told, sender.frames), sender.rest, sender.read)
            self._over.append(over)
            self._broker.loop.call_soon(self._come_back, over)

    def _come_back(self, over: Over) -> None:
        try:
            while self._over:
                self._over.popleft().tell()
        finally:
            over.lender.come_back(over.left)

    def _look_in_time(self) -> None:
        if not self._looks and self._senders:
            self._looks = True
            self._broker.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        """Have come back who sends nothing."""
        self._looks = False
        for sender in self._senders.values():
            if sender.frames == sender.frames_seen:
                sender.is_wanted = True
                self._wake()
            sender.frames_seen = sender.frames
        self._look_in_time()

    # ---- the thread

    def heard_of_sync(self) -> None:
        """More is durable."""
        if self.holds_waiting:
            self._wake()

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._broker.after(self._rng.uniform(0, _STEP_MS), self._broker.guarded(self._step))

    def _tell_loop(self) -> None:
        if not self._is_heard:
            self._is_heard = True
            self._broker.after(self._rng.uniform(0, _HEARD_MS), self._broker.guarded(self._heard))

    def _step(self) -> None:
        """Answer what was taken; or take what came, which is answered in a step of its own."""
        self._is_due = False
        if not self._to_answer:
            self._carry()
            if not any(sender.is_wanted for sender in self._room):
                ready = self._ready()
                if ready and not self.lane.is_missed:
                    self._serve(ready)
        else:
            self._answer_taken()
        if self._to_answer:
            self._wake()
            return
        self._answer_durable()
        self._let_go()
        if self._pieces or (self._ready() and not self.lane.is_missed):
            self._wake()

    def _ready(self) -> list[_Sender]:
        """Of whom something may be taken."""
        those = [each for each in self._room if len(each.waiting) < _MOST_WAITING and not each.is_wanted]
        return [each for each in those if each.is_behind or each.wire.unread]

    def _carry(self) -> None:
        """Take up what the loop put."""
        while self._pieces:
            piece = self._pieces.popleft()
            if isinstance(piece, _Sender):
                if piece.is_wanted:
                    self._end_stay(piece)
                else:
                    self._room.append(piece)
                continue
            sender, content = piece
            if not sender.is_over:
                self._send(sender, content)
            else:
                sender.connection.give_back(content)
                self._broker.loop.call_soon(sender.connection.go_on_sending)

    def _serve(self, senders: list[_Sender]) -> None:
        """With the lane, which is the loop's again behind this."""
        lane = self.lane
        if not lane.is_lent or self.now_ms() > lane.until_ms or lane.is_full or lane.error:
            lane.is_missed = True
            self.counts["missed"] += 1
            self._tell_loop()
            return
        for sender in senders:
            sender.read += sender.wire.take(_MOST_LEFT_BYTES - len(sender.read))
        had_any = lane.frames > 0
        if not self._take(senders):
            for sender in senders:
                sender.is_wanted = True
            self._tell_loop()
        elif not had_any and lane.frames:
            self._tell_loop()

    def _take(self, senders: list[_Sender]) -> bool:
        """Lay out what they sent, and write it: whether it is in the log's file."""
        run, lane, broker = self._lent.run, self.lane, self._broker
        assert run is not None
        mark, begin = _Mark(run), run.end_offset
        records = len(run.records)
        sources = [Source(each.read, 0, each.connection.packed_peer, _MOST_SENT) for each in senders]
        found = self._lent.kernel.take(run, sources)
        content = b"".join(run.records[records:])
        lane.passes += 1
        if content:
            try:
                broker.file_of(lane.descriptor).write(begin - lane.file_begin, (content,))
            except StorageError as error:
                cause = error.__cause__
                lane.error = cause.errno if isinstance(cause, OSError) and cause.errno else errno.EIO
                lane.tried_end = run.end_offset
                mark.undo()
                self.counts["write failed"] += 1
                return False
            if lane.waits:
                broker.flusher.steps.want_beside(run.end_offset)
        for sender, taken in zip(senders, found, strict=False):
            early = taken.early
            assert early is None, "its clients want to wait"
            frames = frame.count_frames(sender.read, 0, taken.position)
            sender.frames += frames
            lane.frames += frames
            self.counts["frames"] += frames
            sender.read = sender.read[taken.position :]
            sender.is_behind = bool(sender.read) and frames == _MOST_SENT
            if taken.stop is Stop.OTHER:
                sender.is_wanted = True
            elif taken.stop is Stop.FULL:
                sender.is_behind = True
                if begin > run.start or content:
                    lane.is_full = True
                else:
                    sender.is_wanted = True
            if taken.answers:
                self._to_answer.append(_Answer(sender, b"".join(taken.answers), len(taken.opaques), run.end_offset))
        for sender in senders[len(found) :]:
            sender.is_behind = True
        if content:
            broker.wrote_beside()
        return True

    def _answer_taken(self) -> None:
        """What was taken leaves, or waits for the disk."""
        to_answer, self._to_answer = self._to_answer, []
        for sender, answers, requests, end in to_answer:
            if self.lane.waits:
                since_ns = int(self.now_ms() * 1e6)
                sender.waiting.append(Waiting(end, answers, requests, since_ns, requests))  # of one message each
            else:
                self._send(sender, answers)

    def _answer_durable(self) -> None:
        for sender in self._room:
            while sender.waiting and sender.waiting[0].end <= self._broker.flusher.steps.done:
                self._send(sender, sender.waiting.popleft().answers)
                self.counts["answered behind a sync"] += 1

    def _send(self, sender: _Sender, content: bytes) -> None:
        """To its socket, which may not take all of it."""
        if sender.rest:
            sender.rest += content
            return
        length = self._rng.randrange(len(content)) if content and self._rng.random() < _SHORT else len(content)
        sender.wire.put(content[:length])
        if length < len(content):
            sender.rest = content[length:]
            sender.is_wanted = True
            self.counts["sockets were full"] += 1

    def _let_go(self) -> None:
        """Give back who is wanted."""
        wanted: Iterable[_Sender] = [each for each in self._room if each.is_wanted]
        for sender in wanted:
            self._room.remove(sender)
            self._end_stay(sender)

    def _end_stay(self, sender: _Sender) -> None:
        sender.is_over = True
        self._tell_loop()
