"""One plan for three: what a peek shows is what the pop then takes, and a notification says yes exactly when that is something.

Random states that are not tidy: new groups, filters, copies in retry topics, postponed and expired messages, blocked and
half-read ordered queues, logs whose begin is gone.
"""

from __future__ import annotations

import random

import pytest

from brokerd.metadata.configs import ORDER_SCOPE, ORDER_SCOPES
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.looking import Notice
from brokerd.pop.requests import PopRequest, PopStatus
from remoting.record.codec import decode_record
from tests.support.memory_log import draft
from tests.support.pop_broker import body_of, master

TAGS = ("x", "y", "")
FILTERS = (("TAG", "*"), ("TAG", "*"), ("TAG", "x"), ("TAG", "x || y"), ("SQL92", "number > 1"))


class Mess:
    """A broker, and what makes it untidy."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = master(recent_log_bytes=self.rng.choice((200, 1 << 30)))
        self.broker.topic("t", 3)
        for name in ("%RETRY%g+t", "%RETRY%g_t"):
            if self.rng.random() < 0.5:
                self.broker.metadata.ensure_topic(name)
        self.ordered = self.rng.random() < 0.5
        self.scope = self.rng.choice(ORDER_SCOPES)
        self.put_group(self.rng.choice((1, 1000)))
        self.handles: list[str] = []

    def request(self, group: str = "g") -> PopRequest:
        kind, expression = self.rng.choice(FILTERS)
        return PopRequest(
            group,
            "t",
            self.rng.choice((-1, -1, 0, 1)),
            self.rng.choice((1, 3, 32)),
            self.rng.choice((0, 500, 2000)),
            0,
            self.rng.choice((InitMode.MIN, InitMode.MAX)),
            expression_type=kind,
            expression=expression,
            attempt_id=self.rng.choice(("", "one", "two")),
        )

    # ---- steps

    def send(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            number = str(self.rng.randrange(4))
            body = f"m{self.broker.log.end_offset}"
            tag = self.rng.choice(TAGS)
            named = {"__SHARDINGKEY": key} if (key := self.rng.choice(("", "a", "b", "c"))) else {}
            self.broker.send(body, queue_id=self.rng.randrange(3), tag=tag, number=number, **named)

    def send_many_of_one_tag(self) -> None:
        self.broker.send(*["no"] * 4000, queue_id=self.rng.randrange(3), tag="y", number="0")

    def copy_of_before(self) -> None:
        for name in ("%RETRY%g+t", "%RETRY%g_t"):
            if self.broker.metadata.topic(name) is not None:
                self.broker.log.append_messages([draft(name, b"c", 0, tag=self.rng.choice(TAGS), reconsume_times=1)])

    def pop(self) -> None:
        self.broker.pop_service.pop(
            self.request(), lambda outcome: self.keep([m.receipt_handle for m in outcome.messages])
        )

    def keep(self, handles: list[str]) -> None:
        self.handles += handles

    def ack(self) -> None:
        if self.handles:
            self.broker.ack(*self.rng.sample(self.handles, self.rng.randint(1, len(self.handles))))

    def change(self) -> None:
        if self.handles:
            outcome = self.broker.change(self.rng.choice(self.handles), self.rng.choice((0, 700, 5000)))
            self.handles.append(outcome.receipt_handle)

    def wait(self) -> None:
        self.broker.turns.run(self.rng.choice((1, 400, 3000)))

    def expire(self) -> None:
        queue_id = self.rng.randrange(3)
        low, high = self.broker.log.queue_range("t", queue_id)
        self.broker.log.expire("t", queue_id, self.rng.randint(low, high))

    def change_order(self) -> None:
        self.ordered = not self.ordered
        self.put_group(1000)

    def change_scope(self) -> None:
        self.scope = self.rng.choice(ORDER_SCOPES)
        self.put_group(1000)

    def put_group(self, retry_max_times: int) -> None:
        self.broker.group("g", fifo=self.ordered, retry_max_times=retry_max_times, attributes={ORDER_SCOPE: self.scope})

    # ---- the rule

    def check(self, request: PopRequest) -> None:
        pop = self.broker.pop_service
        self.broker.turns.run()
        notices: list[Notice] = []
        peeked = pop.looking.peek(request)
        pop.looking.notify(request, notices.append)
        before = self.broker.log.kinds("rmq_sys_logboom_pop")
        outcomes = []
        pop.pop(request, outcomes.append)
        self.broker.turns.run(0)
        (outcome,) = outcomes
        shown = [decode_record(each).body.decode() for each in peeked.records]
        assert shown == [body_of(message) for message in outcome.messages]
        if outcome.status == PopStatus.FOUND:
            assert peeked.rest_count == outcome.rest_count
            assert notices[0].has_messages
        elif notices[0].has_messages:
            moved_on = self.broker.log.kinds("rmq_sys_logboom_pop")[len(before) :]
            assert set(moved_on) == {"taken"}, "only a pop goes on behind what its filter does not let through"
        self.keep([message.receipt_handle for message in outcome.messages])


@pytest.mark.parametrize("seed", range(60))
def test_looking_shows_what_a_pop_takes(seed: int) -> None:
    mess = Mess(seed)
    steps = [mess.send] * 5 + [mess.pop] * 5 + [mess.ack] * 3 + [mess.change] * 2 + [mess.wait] * 4
    steps += [mess.copy_of_before, mess.expire, mess.change_order, mess.change_scope]
    if seed % 10 == 0:
        steps.append(mess.send_many_of_one_tag)
    for _ in range(60):
        mess.rng.choice(steps)()
        if mess.rng.random() < 0.5:
            mess.check(mess.request())
    mess.check(mess.request("new"))


def test_a_notice_for_a_filter_waits_for_what_it_admits() -> None:
    broker = master()
    notices: list[Notice] = []
    deadline_ms = broker.turns.monotonic_ms() + 5000
    broker.pop_service.looking.notify(PopRequest("g", "t", -1, 1, 0, deadline_ms, expression="x"), notices.append)
    broker.send("no", tag="y")
    broker.turns.run(10)
    assert notices == []
    broker.send("yes", tag="x")
    broker.turns.run(10)
    assert notices == [Notice(has_messages=True)]


def test_who_looks_before_a_new_group_pops_sees_where_it_starts() -> None:
    broker = master(recent_log_bytes=100)
    broker.send(*map(str, range(10)))
    request = PopRequest("new", "t", -1, 32, 1000, 0, InitMode.MAX)
    peeked = broker.pop_service.looking.peek(request)
    assert [decode_record(each).body for each in peeked.records] == [b"9"]
    assert broker.receive(group="new", init_mode=InitMode.MAX).bodies == ["9"]
