"""A broker group beside the first one whose sends come on connections, densely: a thread beside the loop takes them, as in
production (`brokerd/sending/lending.py`), whenever nobody else has to have them.

Its one or two brokers run the daemon's own connections, send processor, lending and syncs; what is in C are steps of the world
(`beside.py`, `syncs_beside.py`). It acknowledges what is durable, or, where its machines have batteries and so lose no power,
what is in the log. The second broker goes away and comes back, and who has just had something taken beside its loop is struck.
Verdict: that of every group; when an answer leaves, everyone who could be elected has the message; who was answered and
asks sees it; and what one connection sent to a queue is in its order there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from brokerd.composition.handlers import build_sends
from brokerd.sending.lending import Measures, SendLending
from brokerd.sending.lent import InC
from brokerd.store.log.commitlog import SyncMark
from remoting import codes, frame
from remoting.frame import Command
from remoting.record.properties import encode_properties
from remoting.transport.connection import Intake, RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.watch import UnfinishedSettings, Watch
from tests.sim.beside import Beside, LentRun
from tests.sim.broker import SimBroker
from tests.sim.clients import QUEUES, TOPIC, Client
from tests.sim.side_group import SideGroup
from tests.sim.standing import stand
from tests.sim.syncs_beside import FlusherSteps
from tests.sim.wires import StepLoop, Wire
from tests.sim.world import Action, World
from tests.support.disks import FaultyDisk, MemorySegment
from tests.support.native_library import library_if_any

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

BESIDE: Final = "sends beside the loop"
NAME: Final = "broker-l"
_FIRST_INDEX: Final = 40
_SENDERS: Final = 2
_LEAST_BYTES: Final = 2048  # of a file that is lent; those of a story are small
_PATIENCE_MS: Final = 1500  # for an answer
_BETWEEN_STRIKES_MS: Final = (60, 350)
_PAUSE_MS: Final = (0.02, 0.3)  # between two sends of a burst
_FULL_PAUSE_MS: Final = (1.0, 4.0)  # while too many are not answered
_LAST_PAUSE_MS: Final = (40.0, 50.0)  # when all was sent
_WINDOW: Final = 12  # frames of a sender that are not answered
_FIELDS: Final = {"a": "pg", "b": TOPIC, "c": "TBW102", "d": "4", "f": "0", "g": "1", "h": "0", "j": "0"}


class DescribedDisk(FaultyDisk):
    """One whose files have descriptors, by which others may write to them. With a battery its machine loses no power."""

    def __init__(self, *args: Any, has_battery: bool = False) -> None:
        super().__init__(*args)
        self.described: list[MemorySegment] = []
        self._has_battery = has_battery

    def open(self, path: str, *, create: bool = False, size_bytes: int = 0) -> MemorySegment:
        found = super().open(path, create=create, size_bytes=size_bytes)
        if path.startswith("commitlog/"):
            found.descriptor = len(self.described)
            self.described.append(found)
        return found

    def lose_power_at(self, sync_point: int) -> None:
        if not self._has_battery:
            super().lose_power_at(sync_point)


class LendingBroker(SimBroker):
    """One broker of such a group."""

    cluster: LentGroup

    def __init__(self, *args: Any, **more: Any) -> None:
        self.loop: StepLoop | None = None
        self.wires: dict[int, Wire] = {}
        self._steps: FlusherSteps | None = None
        super().__init__(*args, **more)
        self.written_end = 0  # up to where somebody wrote beside the loop, in any life

    @property
    def waits_for_disk(self) -> bool:
        return self.first_settings.ack_after_flush

    def _new_disk(self, name: str) -> FaultyDisk:
        return DescribedDisk(self.world.random(name), has_battery=not self.waits_for_disk)

    def file_of(self, descriptor: int) -> MemorySegment:
        """What a descriptor of its disk is of."""
        assert isinstance(self.disk, DescribedDisk)
        return self.disk.described[descriptor]

    @property
    def flusher(self) -> FlusherSteps:
        assert self._steps is not None, "nobody waits for its disk"
        return self._steps

    # ---- lives

    def _build(self, ask_first: bool) -> None:
        self._steps = None
        self.wires = {}
        self.loop = StepLoop(self, self.world.random(f"loop of {self.name}, life {self.life}"))
        super()._build(ask_first)
        store = self.core.store
        if store.commitlog.end_offset < self.written_end:
            self.cluster.counts["cut behind what was taken"] += 1
        self.written_end = store.commitlog.end_offset
        if self.waits_for_disk:
            store.commitlog.write_ahead(4096, 2)
            self._steps = FlusherSteps(self)
        self._build_sends()

    def _build_sends(self) -> None:
        core = self.core
        processor, turns = build_sends(
            core,
            self.retry,
            self.store_host,
            lambda done: done(),
            self,
            make_topics=False,
            library=library_if_any(),
        )
        lent = LentRun(turns.kernel)
        self.beside = beside = Beside(self, lent, self.cluster.counts)
        in_c = InC(lent, beside, None)
        if self._steps is not None:
            self._steps.steps.beside_listener = beside.heard_of_sync
            in_c = InC(lent, beside, self._steps.syncs)
        self.lending = SendLending(
            turns,
            core.appends,
            in_c,
            self,
            core.show,
            Measures(lambda: int(self.time() * 1e9), _LEAST_BYTES),
        )
        processor.lend_by(self.lending)
        core.store.commitlog.turns.looks.enders.append(beside.finish_all)
        self.driver.meaning_listeners += [self._note_replica, processor.meaning_changes]
        self._processor = processor
        self._handlers = {
            codes.SEND_MESSAGE_V2: processor.handle,
            codes.GET_MAX_OFFSET: self._tell_maximum,
        }
        self._intake = Intake(Watch(UnfinishedSettings()), carrier=beside, catch_up=lambda: processor.catch_up())
        self._limits = ConnectionLimits()

    def guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """The same, on its loop."""
        run_inside = super().guarded(action)

        def run() -> None:
            outer = asyncio._get_running_loop()
            asyncio._set_running_loop(self.loop)
            try:
                run_inside()
            finally:
                asyncio._set_running_loop(outer)

        return run

    def kill(self, how: str = "is killed") -> None:
        self._note_end("killed")
        super().kill(how)

    def crash(self, how: str = "loses power") -> None:
        if self.waits_for_disk:
            self._note_end("lost power")
            super().crash(how)
        else:
            self.kill("is killed, as its machine goes on by its battery")
            self.cluster.lost_power(self)

    def _note_end(self, how: str) -> None:
        """Whether it ends in the middle of something."""
        if not self.is_up:
            return
        counts = self.cluster.counts
        counts[f"{how} while lent"] += self.beside.lane.is_lent
        counts[f"{how} with news"] += self.beside.lane.is_lent and self.beside.lane.has_news
        counts[f"{how} before the answer"] += self.beside.holds_unanswered
        counts[f"{how} while answers wait"] += self.beside.holds_waiting

    def _note_replica(self) -> None:
        """Somebody connects, or settings change."""
        self.cluster.counts["meaning changed while lent"] += self.beside.lane.is_lent

    # ---- what the thread tells

    def wrote_beside(self) -> None:
        """Something is in the log's file that the loop does not know of."""
        run = self.beside.lent_run
        file_bytes = self.store_settings.segment_size_bytes
        self.cluster.counts["went on in another file"] += run.start // file_bytes > self.written_end // file_bytes > 0
        self.written_end = max(self.written_end, run.end_offset)
        self.cluster.wrote(self)

    # ---- syncs

    def request_flush(self) -> None:
        if self._steps is None:
            super().request_flush()
        else:
            self._steps.request()

    def heard_of_syncs(self) -> None:
        """On the loop: more is durable."""
        self._note_roll()
        self.driver.on_flushed(self.monotonic_ms())
        self.after_event()

    def synced_in_python(self, mark: SyncMark) -> None:
        """On the loop."""
        self.core.store.mark_flushed(mark)
        self.heard_of_syncs()

    def _thread_act(self) -> Action | None:
        if self._steps is not None and self._steps.is_due:
            return self._steps.sync
        return super()._thread_act()

    # ---- clients

    def accept(self, client: Client, heard: Callable[[bytes], None]) -> Wire:
        """Somebody connects."""
        wire = Wire(self, client, 100 + len(self.wires), heard)
        self.wires[wire.number] = wire
        wire.connect(self._handlers, self._limits, self._processor, self._intake)
        return wire

    def _tell_maximum(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            epoch, offset = self._how_far(int(request.ext["queueId"]))
            connection.respond(request, ext={"offset": str(offset), "epoch": str(epoch)})

    def _how_far(self, queue_id: int) -> tuple[int, int]:
        """In which epoch, which is -1 of who is no master, readers see how far."""
        epoch = self.driver.machine.master_epoch if self.driver.is_master else -1
        return epoch, self.core.store.max_offset(TOPIC, queue_id)

    def asked_how_far(self, queue_id: int) -> tuple[int, int]:
        """The same on another connection, before whose requests are decoded it is caught up."""
        self._processor.catch_up()
        return self._how_far(queue_id)

    def epoch_at(self, offset: int) -> int:
        """Of which epoch what is at an offset of its log is."""
        entries = self.driver.machine.epochs.entries
        return max((each.epoch for each in entries if each.start_offset <= offset), default=0)


class LentGroup(SideGroup):
    """The group of one story."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster, NAME, "l")
        self.counts: Counter[str] = cluster.coverage.beside
        self._rng = rng = cluster.world.random("sends beside the loop")
        self._is_over = False
        self._next_strike_ms = 0.0
        first = cluster.brokers[0]
        peers: dict[str, SimBroker] = {}
        settings = replace(first.first_settings, learner=False, ack_after=rng.choice(("flush", "append")))
        size = rng.choice((1, 2))
        self.populate([first.of_group(NAME, _FIRST_INDEX + n, peers, LendingBroker, settings) for n in range(size)])
        for controller in cluster.controllers:
            controller.meet({broker.address: broker for broker in self.brokers})

    def begin(self) -> None:
        super().begin()
        senders = [DenseSender(self.world, self, f"l-d{n}") for n in range(_SENDERS)]
        self.clients += senders
        self.main.clients += senders
        self._strike_later()
        self._away_later()

    def _strike_later(self) -> None:
        self._next_strike_ms = self.world.now_ms + self._rng.uniform(*_BETWEEN_STRIKES_MS)

    def end(self) -> None:
        self._is_over = True

    def check(self) -> None:
        super().check()
        for client in self.clients:
            if isinstance(client, DenseSender):
                client.check_order()

    # ---- what goes wrong here, beside what does everywhere

    def _away_later(self) -> None:
        if len(self.brokers) > 1:
            self.world.after(self._rng.uniform(100, 900), self._away)

    def _away(self) -> None:
        """Who is not the master leaves for a while; then that one stands alone."""
        if self._is_over:
            return
        master = self.master()
        away = next((each for each in self.brokers if each is not master and each.is_running), None)
        if master is not None and away is not None:
            away.kill()
            self.main.injector.later(away, self._rng.uniform(100, 1200))
        self._away_later()

    def wrote(self, broker: LendingBroker) -> None:
        """Somebody wrote beside the loop: a good moment."""
        if self._is_over or self.world.now_ms < self._next_strike_ms:
            return
        rng = self._rng
        self._strike_later()
        strike = rng.choices(self._STRIKES, (4, 3, 2, 1, 2, 1, 2))[0]
        life = broker.life
        self.world.after(rng.uniform(0, 0.4), partial(self._strike, broker, life, strike))

    def _strike(self, broker: LendingBroker, life: int, strike: Callable[[LentGroup, LendingBroker], str]) -> None:
        if self._is_over or broker.life != life or not broker.is_up:
            return
        did = strike(self, broker)
        self.counts[f"struck: {did}"] += 1
        self.main.coverage.fault(did, self.world.now_ms)
        self.world.note(f"{broker.name} is struck while it lends: {did}")

    def _kill(self, broker: LendingBroker) -> str:
        broker.kill()
        self.main.injector.later(broker, self._rng.uniform(1, 300))
        return "kill"

    def _crash(self, broker: LendingBroker) -> str:
        broker.crash()
        self.main.injector.later(broker, self._rng.uniform(20, 300))
        return "crash"

    def _power(self, broker: LendingBroker) -> str:
        broker.disk.lose_power_at(self._rng.randrange(1, 4))
        return "power at a sync"

    def _write_error(self, broker: LendingBroker) -> str:
        broker.disk.fail_write_at(self._rng.randrange(1, 4))
        return "write error"

    def _full(self, broker: LendingBroker) -> str:
        disk = broker.disk
        disk.capacity_bytes = disk.used_bytes + self._rng.randrange(1500)

        def room() -> None:
            disk.capacity_bytes = 1 << 40

        self.world.after(self._rng.uniform(20, 400), room)
        return "full disk"

    def _sync_error(self, broker: LendingBroker) -> str:
        broker.disk.fail_sync_at(self._rng.randrange(1, 3))
        return "sync error"

    def _stand(self, broker: LendingBroker) -> str:
        stand(broker, self._rng.uniform(50, 700))
        return "slow disk"

    _STRIKES = (_kill, _crash, _power, _write_error, _full, _sync_error, _stand)


class DenseSender(Client):
    """Sends in bursts, on one connection, and does not wait for answers; now and then asks how far a queue goes."""

    cluster: LentGroup

    def __init__(self, world: World, cluster: LentGroup, name: str) -> None:
        super().__init__(world, cluster, name)
        self._count = 0
        self._wire: Wire | None = None
        self._broker: LendingBroker
        self._dial = 0  # the number of the last attempt to connect
        self._left = 0  # of the burst
        self._got = b""
        self._sent: dict[int, tuple[bytes, int, float]] = {}  # by opaque, on this wire: body, queue, and when
        self._asked: dict[int, tuple[int, int, int, float]] = {}  # queue, the epoch and how far it has to go, and when
        self._shown: dict[int, tuple[int, int]] = {}  # of each queue: the epoch, and how far it goes at least
        self._order: list[list[tuple[int, int, int]]] = []  # of each wire: opaque, queue, offset

    def step(self) -> None:
        """The next burst."""
        if self._wire is None:
            self._connect()
            return
        if self.rng.random() < 0.25:
            self._hang_up()
            self.again(1, 30)
            return
        self._left = self.rng.randrange(10, 60)
        self._send_next(self._dial)

    def _connect(self) -> None:
        broker = self.broker
        assert isinstance(broker, LendingBroker)
        self._dial += 1
        dial = self._dial

        def arrive() -> None:
            if broker.is_up:
                wire = broker.accept(self, partial(self._heard, dial))
                wire.answered = partial(self._left_broker, broker)
                self.cluster.network.send(broker, self, lambda: self._connected(dial, broker, wire))

        self.cluster.network.send(self, broker, broker.guarded(arrive))
        self.after(30, lambda: self._look_at_dial(dial))

    def _look_at_dial(self, dial: int) -> None:
        if self._dial == dial and self._wire is None:
            self._dial += 1
            self.move()
            self.again(1, 20)

    def _connected(self, dial: int, broker: LendingBroker, wire: Wire) -> None:
        if self._dial != dial or not self.is_active:
            wire.hang_up()
            return
        self._wire, self._broker = wire, broker
        self._got = b""
        self._sent, self._asked, self._shown = {}, {}, {}
        self._order.append([])
        self.step()

    def _hang_up(self) -> None:
        assert self._wire is not None
        self._wire.hang_up()
        self._wire = None
        self._dial += 1
        for _ in self._sent:
            self.history.count("dense send", "unknown")
        self._sent, self._asked = {}, {}
        self.calls = 0

    def _send_next(self, dial: int) -> None:
        if self._wire is None or dial != self._dial:
            return
        if not self.is_active:
            self._left = 0
        if self._is_late():
            self._hang_up()
            self.move()
            self.again(5, 40)
            return
        has_room = len(self._sent) < _WINDOW
        if self._left and has_room:
            self._left -= 1
            self._send()
        if self._left or not self.is_active:
            if self.calls or self.is_active:
                pause_ms = (_PAUSE_MS if has_room else _FULL_PAUSE_MS) if self._left else _LAST_PAUSE_MS
                self.after(self.rng.uniform(*pause_ms), lambda: self._send_next(dial))
        elif self.rng.random() < 0.5:
            self.again(10, 120)
        else:
            self._ask()
            self.again(5, 60)

    def stop(self) -> None:
        super().stop()
        self._send_next(self._dial)

    def _is_late(self) -> bool:
        since = [each[-1] for each in (*self._sent.values(), *self._asked.values())]
        return bool(since) and self.world.now_ms - min(since) > _PATIENCE_MS

    def _send(self) -> None:
        assert self._wire is not None
        self._count += 1
        opaque, queue_id = self._count, self.rng.randrange(QUEUES)
        key = f"{self.name}:{opaque}:"
        body = key.encode() + b"." * self.rng.randrange(300)
        properties = encode_properties({"UNIQ_KEY": key, "KEYS": key, "TAGS": "a"})
        self.history.may_be_stored(body)
        self._sent[opaque] = body, queue_id, self.world.now_ms
        self.calls = 1
        fields = {**_FIELDS, "e": str(queue_id), "i": properties.decode()}
        self._wire.send(frame.encode_request(codes.SEND_MESSAGE_V2, opaque, fields, body))

    def _ask(self) -> None:
        """How far a queue goes: as far as this one was answered, at least."""
        assert self._wire is not None
        self._count += 1
        queue_id = self.rng.randrange(QUEUES)
        epoch, offset = self._shown.get(queue_id, (-1, 0))
        self._asked[self._count] = queue_id, epoch, offset, self.world.now_ms
        self.calls = 1
        fields = {"topic": TOPIC, "queueId": str(queue_id)}
        self._wire.send(frame.encode_request(codes.GET_MAX_OFFSET, self._count, fields))

    # ---- answers

    def _left_broker(self, broker: LendingBroker, answer: Command) -> None:
        """An answer leaves the broker."""
        sent = self._sent.get(answer.opaque)
        if sent is not None and answer.code == codes.SUCCESS:
            offset = int(answer.ext["msgId"][-16:], 16)
            self.cluster.promises.acknowledged(broker, broker.epoch_at(offset), [(sent[0], offset)])

    def _heard(self, dial: int, data: bytes) -> None:
        if self._dial != dial or self._wire is None:
            return
        answers: list[Command] = []
        content = self._got + data
        self._got = content[frame.decode_frames(content, answers) :]
        for answer in answers:
            if self._wire is None:
                return
            if answer.opaque in self._asked:
                self._told_maximum(answer)
            elif answer.opaque in self._sent:
                self._answered(answer)
            else:
                self.world.broken(f"{self._broker.name} answers {answer.opaque} of {self.name} twice")
        self.calls = int(bool(self._sent or self._asked))

    def _answered(self, answer: Command) -> None:
        body, queue_id, _ = self._sent.pop(answer.opaque)
        if answer.code != codes.SUCCESS:
            self.history.count("dense send", "failed")
            self._hang_up()
            self.move()
            self.again(2, 40)
            return
        self.history.count("dense send", "ok")
        offset = int(answer.ext["queueOffset"])
        self.history.acknowledged.setdefault(body, []).append((queue_id, offset))
        self._order[-1].append((answer.opaque, queue_id, offset))
        if self._broker.is_up:
            epoch = self._broker.epoch_at(int(answer.ext["msgId"][-16:], 16))
            known = self._shown.get(queue_id, (epoch, 0))
            self._shown[queue_id] = epoch, max(offset + 1, known[1])
            if self.rng.random() < 0.2:
                self._have_asked(queue_id, *self._shown[queue_id])

    def _have_asked(self, queue_id: int, epoch: int, least: int) -> None:
        """Somebody who heard of it asks."""
        broker = self._broker

        def arrive() -> None:
            if broker.is_up:
                self.history.count("asked elsewhere", "ok")
                self._check_shown(broker, queue_id, (epoch, least), broker.asked_how_far(queue_id))

        self.cluster.network.send(self, broker, broker.guarded(arrive))

    def _told_maximum(self, answer: Command) -> None:
        queue_id, epoch, least, _ = self._asked.pop(answer.opaque)
        self.history.count("asked how far", "ok")
        told = int(answer.ext["epoch"]), int(answer.ext["offset"])
        self._check_shown(self._broker, queue_id, (epoch, least), told)

    def _check_shown(self, broker: LendingBroker, queue_id: int, known: tuple[int, int], told: tuple[int, int]) -> None:
        """Who asks in the same epoch sees what somebody was answered before."""
        if told[0] == known[0] and told[1] < known[1]:
            self.world.broken(
                f"{broker.name} says that queue {queue_id} goes to {told[1]}, and {self.name} was answered that it goes to "
                f"{known[1]} before that was asked"
            )

    def check_order(self) -> None:
        """What was sent to a queue on one connection is there in that order."""
        for answers in self._order:
            last = [-1] * QUEUES
            for opaque, queue_id, offset in sorted(answers):
                if offset <= last[queue_id]:
                    self.world.broken(
                        f"{self.name} sent {opaque} to {queue_id} behind what is at {last[queue_id]}, not {offset}"
                    )
                last[queue_id] = offset
