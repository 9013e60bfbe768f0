"""A broker group's timers in one process: a service over a log in memory, whose masters change, and a model that reads that log
slowly from its first record and says what is wrong in it.

What is due when, what was delivered and what was taken back are read from the records themselves; the model knows no cursor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from brokerd.metadata.configs import TopicConfig
from brokerd.timers import rolling
from brokerd.timers.clock import AGREES_MS, PATIENCE_MS, SLACK_MS
from brokerd.timers.codes import DELETE_KEY, DUE_MS, LEG_MS, OUT_MS, PLACE, slot_of
from brokerd.timers.cursor import AHEAD, BEGIN, FENCE, MOVED, RETURNED, STOWED, TIMERS_TOPIC
from brokerd.timers.far import Far
from brokerd.timers.files.original import LeftNote
from brokerd.timers.in_log import TimersInLog
from brokerd.timers.interface import Recalled
from brokerd.timers.queue_far import QueueFar
from brokerd.timers.service import Surroundings, TimerService, Witnesses
from brokerd.timers.set_back import BOUND_MS
from brokerd.timers.settings import TimerSettings
from brokerd.timers.tier import NoTier, TimerTier
from remoting.errors import InvalidParameter, RequestError
from remoting.names import TIMER_TOPIC
from remoting.record.codec import Record, decode_record
from tests.support.memory_log import HOST, MemoryRecordLog, draft, drafts_of
from tests.support.turns import Turns
from tests.unit.brokerd.timers.followed import Followed

TOPIC = "orders"
ROUNDING_MS = 1  # of the loop's time, where it is compared with the wall clock's
RETAINED_MS = 90_000  # so the window is at most a minute


class Wrong(AssertionError):
    """The timers broke a promise."""


class Topics:
    """What timers need of the metadata."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    def topic(self, name: str) -> TopicConfig | None:
        return None if name in self.gone else TopicConfig(name, 4, 4, 6)

    def deleted_at(self, _name: str) -> int:
        return -1


def steady_ms(turns: Turns) -> int:
    return int(turns.time() * 1000)


class Node:
    """A broker over a log: a replica until it leads."""

    def __init__(
        self,
        log: MemoryRecordLog,
        turns: Turns,
        rng: random.Random,
        settings: TimerSettings,
        others_ms: Callable[[], list[int] | None] = lambda: None,
        left: LeftNote | None = None,
        tier: TimerTier | None = None,
    ) -> None:
        self.log = log
        self.turns = turns
        self.topics = Topics()
        self.base_ms = turns.wall_ms() - steady_ms(turns)  # of the wall clock that is to be believed
        self.most = 0  # timers in a second
        self.going = 0  # entries below that queue offset lie in files that go soon
        witnesses = Witnesses(others_ms, self.stored_ms)
        in_log = TimersInLog()
        surroundings = Surroundings(
            self.topics,  # type: ignore[arg-type]
            turns,
            turns.wall_ms,
            HOST,
            rng.getrandbits,
            lambda: RETAINED_MS,
            in_log,
            lambda: self.most,
            witnesses,
            lambda: self.going,
            NoTier() if tier is None else tier,
        )
        self.followed = Followed(log, rng, in_log.delivered) if settings.files else None
        queue = QueueFar(partial(log.queue_range, TIMER_TOPIC, 0), partial(log.read_units, TIMER_TOPIC, 0))
        self.far: Far = queue if self.followed is None else self.followed.far
        self.service = TimerService(log, self.far, surroundings, settings, left=left)
        log.listeners.append(self.service.dispatched)
        self.service.rebuild()

    def stored_ms(self) -> int:
        """The latest store time of its log."""
        return max((decode_record(each).store_timestamp_ms for each in self.log._records.values()), default=0)

    def lead(self) -> None:
        self.log.is_master = True
        self.service.catch_up()
        self.service.lead()

    def put(self, key: str, due_ms: int, **more: str) -> int:
        """Append a timer as it is stamped when it is sent; where it is in the queue."""
        service = self.service
        service.follow_clock()
        due_ms = max(due_ms, service.least_due_ms)
        leg_ms = rolling.leg_before(due_ms, service.now_ms(), service.least_due_ms, service.window_ms)
        properties = {"UNIQ_KEY": key, "REAL_TOPIC": TOPIC, "REAL_QID": "1", OUT_MS: str(slot_of(due_ms))}
        properties |= {DUE_MS: str(due_ms)} | ({} if leg_ms is None else {LEG_MS: str(leg_ms)}) | more
        (place,) = self.log.append_placed([draft(TIMER_TOPIC, key.encode(), 0, properties=properties)])
        return place.queue_offset

    def put_marker(self, key: str, due_ms: int) -> None:
        """As a client's recall of the original is stored: in the slot of what it takes back."""
        self.service.follow_clock()
        slot_ms, leg_ms = slot_of(due_ms), self.service.least_due_ms
        properties = {
            "UNIQ_KEY": key, "REAL_TOPIC": TOPIC, "REAL_QID": "1", DELETE_KEY: f"{TOPIC}+{key}",
            OUT_MS: str(slot_ms), DUE_MS: str(slot_ms + 1), LEG_MS: str(leg_ms),
        }  # fmt: skip
        self.log.append_placed([draft(TIMER_TOPIC, b"0", 0, properties=properties)])


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.turns = Turns()
        self.settings = TimerSettings(
            batch_messages=rng.choice((1, 2, 5)),
            near_s=rng.choice((1, 10)),
            near_max=rng.choice((1, 4, 1000)),
            in_flight_messages=rng.choice((3, 1000)),
            retry_ms=50,
            files=seed % 2 == 0,
        )
        log = MemoryRecordLog(self.turns.wall_ms)
        log.dispatches = log.acknowledges = False
        self.count = 0
        self.sent: dict[str, tuple[int, int]] = {}  # by key: its place and when it is due, as the sender was told
        self.names: dict[str, int] = {}  # by key: when it was told to be recalled by a marker, in the master's life
        self.accepted: set[str] = set()
        self.refused: set[str] = set()
        self.switches = self.delivered = self.torn = self.torn_moves = self.torn_stows = self.torn_returns = 0
        self.set_at_ms = 0  # when somebody set it forward
        self.ahead_ms = 0  # of the wall clock that somebody set
        self.tells = rng.choice((None, False, True))  # whether other machines tell the right time; None: there are none
        self.fences: set[int] = set()  # where records of them begin in the log, of all logs there were
        self.ahead: set[int] = set()  # likewise of batches that are ahead of the cursor
        self.moves: set[int] = set()  # likewise of those that move timers to the log's end before their time
        self.node = self.take(log)
        self.lead()

    def others_ms(self) -> list[int] | None:
        """What other machines say."""
        return None if self.tells is None else [self.turns.wall_ms() - self.ahead_ms] if self.tells else []

    def lead(self) -> None:
        """The node becomes the master; it believes its clock as far as witnesses agree."""
        self.believe()
        others_ms, now_ms = self.others_ms(), steady_ms(self.turns)
        if others_ms is not None:
            witnessed_ms = max((self.node.stored_ms(), *others_ms))
            if 0 < witnessed_ms < min(self.turns.wall_ms(), self.node.base_ms + now_ms) - AGREES_MS:
                self.node.base_ms, self.set_at_ms = witnessed_ms - now_ms, now_ms
        self.node.lead()

    def take(self, log: MemoryRecordLog) -> Node:
        node = self.make_node(log)
        append = log.append_leading

        def checked(topic: str, kind: str, body: bytes, behind: Any, **more: bool) -> tuple[int, int]:
            for each in drafts_of(behind):
                self.check_not_early(node, each)
            return append(topic, kind, body, behind, **more)

        log.append_leading = checked  # type: ignore[method-assign]
        return node

    def make_node(self, log: MemoryRecordLog) -> Node:
        return Node(log, self.turns, self.rng, self.settings, self.others_ms)

    # ---- steps

    def send(self) -> None:
        for _ in range(self.rng.choice((1, 1, 6))):
            self.count += 1
            ahead_ms = self.rng.choice((-50, 1, 1, 2, 40, 40, 500, 900, 3000, 20_000, 70_000, 200_000))
            due_ms = self.node.service.now_ms() + ahead_ms
            key = f"k{self.count}"
            self.sent[key] = self.node.put(key, due_ms), due_ms

    def recall(self) -> None:
        waiting = [key for key in self.sent if key not in self.accepted]
        if waiting:
            key = self.rng.choice(waiting[-20:] if self.rng.random() < 0.5 else waiting)
            place, due_ms = self.sent[key]
            record = self.timers().get(key)
            if record is not None:
                due_ms = int(record.property_map()[DUE_MS])
            answers: list[RequestError | None] = []
            is_there = key in self.timers() and key not in self.copies() and key not in self.names
            # one that was appended again is known by the millisecond: where the cursor left one in two, or is in the middle of
            # one, it is taken for delivered
            done = self.node.service.table.done
            is_there = is_there and due_ms not in {done.cursor.due_ms, *(fence.key.due_ms for fence in done.fences)}
            self.node.service.recall(Recalled(TOPIC, key, place, due_ms), answers.append)
            # whether one that is late is in the tier is not known, nor which of those that came late from there it is
            is_there &= all(each.due_ms > due_ms for each in self.node.service.table.objects.values())
            is_there &= key not in self.came_late()
            if answers and answers[0] is not None and is_there:
                raise Wrong(f"{key} waits, and its recall is refused: {answers[0]}")
            if not answers:
                self.accepted.add(key)

    def mark(self) -> None:
        """Take one back by a marker of the original's, which is in time."""
        least_ms = self.node.service.least_due_ms
        due = {key: int(record.property_map()[DUE_MS]) for key, record in self.timers().items()}
        gone = self.names.keys() | self.copies().keys()
        in_time = [key for key in self.sent if due[key] > least_ms and key not in gone]
        if in_time:
            key = self.rng.choice(in_time)
            self.names[key] = due[key]
            self.node.put_marker(key, due[key])

    def dispatch(self) -> None:
        """Replicas have some of it."""
        self.node.log.dispatch(self.rng.choice((1, 2, 5, None)))

    def acknowledge(self) -> None:
        self.node.log.acknowledge()

    def pass_time(self) -> None:
        self.turns.run(self.rng.choice((1, 1, 7, 100, 1000, 9000)))

    def set_clock(self) -> None:
        """Somebody sets the wall clock, and back again; then nobody does for a while."""
        if not self.ahead_ms and self.set_at_ms > 0 and steady_ms(self.turns) - self.set_at_ms < PATIENCE_MS:
            return
        self.set_by(self.rng.choice((-4000, -200_000, 3000, 40_000)) if not self.ahead_ms else -self.ahead_ms)

    def set_by(self, by_ms: int) -> None:
        self.believe()
        if by_ms > 0:
            self.set_at_ms = steady_ms(self.turns)
        self.ahead_ms += by_ms
        self.turns.set_wall_clock(by_ms)

    def believe(self) -> None:
        """A clock that nobody has set for long is right; that it was set back is only known to who looks."""
        now_ms = steady_ms(self.turns)
        is_disputed = self.tells and self.ahead_ms > AGREES_MS
        if now_ms - self.set_at_ms >= PATIENCE_MS - ROUNDING_MS and not is_disputed:
            self.node.base_ms = max(self.node.base_ms, self.turns.wall_ms() - now_ms)
        if self.tells:
            self.node.base_ms = max(self.node.base_ms, self.turns.wall_ms() - self.ahead_ms - now_ms)

    def refuse(self) -> None:
        log = self.node.log
        log.refusal = InvalidParameter("the disk is full") if log.refusal is None else None
        if log.refusal is not None:
            self.turns.run(self.rng.choice((1, 60, 200)))
            log.refusal = None

    def fill_up(self) -> None:
        """The disk: files go soon, up to any of them. Another broker may be the master just then."""
        self.node.going = self.rng.randrange(self.node.log.queue_range(TIMER_TOPIC, 0)[1] + 1)
        if self.rng.random() < 0.5:
            self.turns.run(1001)
            self.switch()

    def switch(self) -> None:
        """Another broker becomes the master; its log ends anywhere behind what is confirmed."""
        log = self.node.log
        self.switches += 1
        visible = self.dispatched_to(log)
        ends = [0, *log.positions]
        cut = self.choose_cut([end for end in ends if end >= visible][:6] or [visible])
        torn = self.is_torn(cut)
        self.torn += torn in (BEGIN, AHEAD)
        self.torn_moves += torn == MOVED
        self.torn_stows += torn == STOWED
        self.torn_returns += torn == RETURNED
        self.node.service.step_down()
        if self.rng.random() < 0.3:  # the same broker, after its log was cut
            log.is_master = False
            log.acknowledge()
            log.cut(cut)
            if self.node.followed is not None:
                self.node.followed.files.truncate(cut)
            self.node.service.truncated(cut)
            self.node.service.rebuild()
        else:
            log.listeners.clear()
            dispatched = self.rng.choice([end for end in ends if end <= visible][-4:])
            log = log.copy(cut, dispatched)
            log.is_master = log.dispatches = log.acknowledges = False
            if self.rng.random() < 0.3:  # on a machine whose clock is wrong
                self.set_by(self.rng.choice((300_000, 900_000)) if not self.ahead_ms else -self.ahead_ms)
            self.node = self.take(log)
            if self.rng.random() < 0.5:
                log.dispatch(self.rng.choice((1, 3)))
        self.names = {key: due for key, due in self.names.items() if key in self.markers()}
        timers = self.timers()
        for key in [key for key in self.sent if key not in timers]:
            del self.sent[key]
        self.accepted &= self.recalled().keys()
        self.lead()
        self.turns.run(0)

    def choose_cut(self, ends: list[int]) -> int:
        return self.rng.choice(ends)

    def dispatched_to(self, log: MemoryRecordLog) -> int:
        tail = [unit[0] for unit in log.undispatched_units(TIMER_TOPIC)]
        first = min((unit[0] for _, _, unit in log._tail), default=log.end_offset)
        assert all(first <= each for each in tail)
        return first

    def is_torn(self, cut: int) -> str:
        """What kind of batch is cut between its begin and its last message; "" = none is."""
        kinds = (BEGIN, AHEAD, MOVED, STOWED, RETURNED)
        begins = [each for each in self.records(TIMERS_TOPIC) if each.property_map()["TAGS"] in kinds]
        if not begins:
            return ""
        last = max(
            (each for each in begins if each.physical_offset < cut), key=lambda each: each.physical_offset, default=None
        )
        if last is None:
            return ""
        end = last.physical_offset + last.size
        behind = [each for each in self.all_records() if end <= each.physical_offset < cut]
        return last.property_map()["TAGS"] if len(behind) < len(orjson.loads(last.body)["offsets"]) else ""

    # ---- what the log says

    def all_records(self) -> list[Record]:
        return [decode_record(each) for each in self.node.log._records.values()]

    def records(self, topic: str) -> list[Record]:
        return [each for each in self.all_records() if each.topic == topic]

    def timers(self) -> dict[str, Record]:
        """The first records of timers, by key."""
        return {
            record.body.decode(): record
            for record in self.records(TIMER_TOPIC)
            if PLACE not in (properties := record.property_map()) and DELETE_KEY not in properties
        }

    def came_late(self) -> set[str]:
        """Timers that were appended again when they were due already."""
        found = ((record.body.decode(), record.property_map()) for record in self.records(TIMER_TOPIC))
        return {key for key, each in found if PLACE in each and int(each.get(LEG_MS, -1)) > int(each[DUE_MS])}

    def markers(self) -> set[str]:
        found = (record.property_map() for record in self.records(TIMER_TOPIC))
        return {each["UNIQ_KEY"] for each in found if DELETE_KEY in each and PLACE not in each}

    def own_markers(self) -> list[Record]:
        """Of brokers, for others: of no effect, but they wait, for as long as a clock said that was ahead."""
        properties = ((record, record.property_map()) for record in self.records(TIMER_TOPIC))
        return [record for record, each in properties if DELETE_KEY in each and PLACE in each]

    def recalled(self) -> dict[str, int]:
        """By key, where in the log it was taken back."""
        keys = {record.queue_offset: key for key, record in self.timers().items()}
        found = (each for each in self.records(TIMERS_TOPIC) if each.property_map()["TAGS"] == "recalled")
        return {keys[orjson.loads(each.body)["place"]]: each.physical_offset for each in found}

    def copies(self) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for record in self.records(TOPIC):
            found.setdefault(record.body.decode(), []).append(record)
        return found

    # ---- what is promised

    def check_not_early(self, node: Node, each: Any) -> None:
        if each.topic == TOPIC:
            due_ms = self.sent[each.body.decode()][1]
            self.believe()
            now_ms = min(self.turns.wall_ms(), node.base_ms + steady_ms(self.turns) + SLACK_MS + ROUNDING_MS)
            last = node.service.table.last
            is_promised = node.service._delivery._promised and last is not None and not last.before
            if due_ms > now_ms and not is_promised:
                raise Wrong(f"{each.body!r} is delivered {due_ms - now_ms} ms early")

    def check(self) -> None:
        recalled, copies, timers = self.recalled(), self.copies(), self.timers()
        for key, records in copies.items():
            if records[0].property_map()[PLACE] != str(timers[key].queue_offset):
                raise Wrong(f"{key} says that it waited elsewhere")
            if len(records) > 1:
                raise Wrong(f"{key} is delivered {len(records)} times")
            if key in recalled and records[0].physical_offset > recalled[key]:
                raise Wrong(f"{key} is delivered though it was recalled")
            if key in self.names:
                raise Wrong(f"{key} is delivered though a marker in its slot takes it back")
        self.check_order()

    def check_order(self) -> None:
        """From one fence to the next, but for what was announced before one, and follows it. What is delivered ahead of the
        cursor has an order of its own, and what is on its way when others overtook it comes when its leg ends."""
        latest_ms, lane, is_announced = {BEGIN: 0, AHEAD: 0}, BEGIN, False
        waits_ms: dict[bytes, int] = {}
        for record in self.all_records():
            properties = record.property_map()
            if record.topic == TIMERS_TOPIC and properties["TAGS"] == FENCE:
                self.fences.add(record.physical_offset)
                latest_ms = {BEGIN: 0, AHEAD: 0}
            elif record.topic == TIMERS_TOPIC and properties["TAGS"] == MOVED:
                self.moves.add(record.physical_offset)
            elif record.topic == TIMERS_TOPIC and properties["TAGS"] in latest_ms:
                lane, is_announced = properties["TAGS"], not orjson.loads(record.body)["taken"]
                if lane == AHEAD:
                    self.ahead.add(record.physical_offset)
            elif record.topic == TIMER_TOPIC:
                waits_ms[record.body] = int(properties.get(LEG_MS, properties[DUE_MS]))
            elif record.topic == TOPIC:
                due_ms = waits_ms[record.body]
                if due_ms < latest_ms[lane] and not is_announced:
                    raise Wrong(f"not in the order in which they are due: {latest_ms[lane]} before {due_ms}")
                latest_ms[lane] = max(latest_ms[lane], due_ms if not is_announced else 0)

    def drain(self) -> None:
        """Time passes until all is due; then all that waits was delivered or taken back."""
        if self.ahead_ms:
            self.set_by(-self.ahead_ms)
        self.node.log.refusal = None
        self.check_moves()
        self.go_on(PATIENCE_MS // 6000 + 1, 6000)
        self.sent["last"] = self.node.put("last", self.node.service.now_ms() + 1000), 0
        self.go_on(BOUND_MS // 6000 + 1, 6000)
        self.go_on(400, 20)
        if "last" not in self.copies():
            raise Wrong("what is sent when all clocks are right waits")
        latest_ms = max(int(record.property_map()[DUE_MS]) for record in (*self.timers().values(), *self.own_markers()))
        self.go_on(max(0, latest_ms - self.turns.wall_ms()) // 6000 + 2, 6000)
        self.go_on(400, 20)
        self.check()
        copies, recalled = self.copies(), self.recalled()
        missing = [key for key in self.timers() if key not in copies and key not in recalled and key not in self.names]
        if missing:
            raise Wrong(f"never delivered: {missing}")
        state = self.node.service.state()
        if state.waiting or state.aside:
            raise Wrong(f"nothing waits, but {state}")
        if (
            self.node.far.held_queue_offset(self.node.service.table.done)
            < len(self.node.log.bodies(TIMER_TOPIC)) - 4096
        ):
            raise Wrong("the log is held for nothing")
        self.delivered = len(copies)

    def check_moves(self) -> None:
        """Files that are to go are not held for long."""
        self.node.log.dispatch()
        going = self.node.going = self.node.log.queue_range(TIMER_TOPIC, 0)[1]
        held, rounds = 0, 0
        while held < going and rounds < 400:  # each looks at a part of them, and waits while much is in flight
            self.go_on(1, 500 if rounds % 4 == 0 else 1)
            held, rounds = self.node.far.held_queue_offset(self.node.service.table.done), rounds + 1
        if held < going and not self.node.service.table.aside:
            raise Wrong(f"files with entries below {going} are to go, and are held from {held} on")
        self.node.going = 0

    def go_on(self, times: int, step_ms: int) -> None:
        """Nothing is in the way."""
        for _ in range(times):
            self.node.log.dispatch()
            self.node.log.acknowledge()
            self.turns.run(step_ms)

    def more_steps(self) -> dict[Callable[[], None], int]:
        """With their weights."""
        return {}

    def run(self, steps: int) -> None:
        weights: dict[Callable[[], None], int] = {
            self.send: 20,
            self.dispatch: 25,
            self.acknowledge: 8,
            self.pass_time: 25,
            self.recall: 5,
            self.mark: 3,
            self.switch: 6,
            self.refuse: 1,
            self.fill_up: 3,
            self.set_clock: 2,
        } | self.more_steps()
        for step in self.rng.choices(list(weights), list(weights.values()), k=steps):
            step()
        self.check()
        self.drain()
