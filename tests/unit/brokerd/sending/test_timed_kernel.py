"""Sends for a moment of their own through the kernel: whatever they ask for, as the general path would do it, byte for byte."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2s
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerd.sending.boundary import Source, Taken
from brokerd.sending.counters import TOO_MANY_DUE, TOO_MANY_WAITING
from brokerd.sending.kernel import Kernel
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.stored_form import no_terms
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from brokerd.store.run import Run
from brokerd.timers.done import Done
from brokerd.timers.handles import decode_handle
from brokerd.timers.slots import SlotLimit
from remoting import codes, frame
from remoting.frame import Command
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record
from remoting.record.layout import MAX_PROPERTIES_BYTES
from tests.support.client_bytes import encode_batch_body
from tests.support.native_library import native_library
from tests.support.timers import DAY_MS
from tests.unit.brokerd.sending.test_boundary import Peer
from tests.unit.brokerd.sending.test_send import TOPICS, Broker, request

pytestmark = pytest.mark.usefixtures("both_kernels")

NOW_MS = 1_700_000_000_000
KEY = "0123456789ABCDEF" * 2


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(1 << 20)
    yield broker
    broker.store.close()


def encoded(requests: Sequence[Command]) -> bytes:
    return b"".join(
        frame.encode_request(each.code, each.opaque, each.ext, bytes(each.body), oneway=each.is_oneway)
        for each in requests
    )


def answers_of(broker: Broker, data: bytes) -> list[Command]:
    """In one read event."""

    async def answers() -> list[Command]:
        peer = Peer(broker)
        peer.connection.data_received(data)
        return await peer.finish()

    return asyncio.run(answers())


def left_by_kernel(broker: Broker) -> list[str]:
    """The topics of what takes the general path from now on."""
    left: list[str] = []
    prepare = broker.sender.prepare

    def noting(drafts: Sequence[Draft]) -> Any:
        left.extend(draft.topic for draft in drafts)
        return prepare(drafts)

    broker.sender.prepare = noting  # type: ignore[method-assign]
    return left


def units_of(broker: Broker) -> dict[tuple[str, int], Any]:
    broker.records()
    return {key: queue.read(0, 1000) for key, queue in sorted(broker.store.queues.table.items())}


def check_same(
    requests: Sequence[Command], make: Callable[[], Broker] = lambda: Broker(1 << 20), **timers: Any
) -> tuple[Broker, list[Command], list[str]]:
    """Through the kernel, each request by the general path, and by that without what it has for ordinary timers; with the timers
    as given. The last is what the kernel left."""
    fast, general, slow = brokers = make(), make(), make()
    for broker in (general, slow):
        broker.kernel.topics_changed(dict.fromkeys(TOPICS))
    slow.sender.kernel_rules = slow.sender.kernel_rules._replace(terms=no_terms)
    left = left_by_kernel(fast)
    answered = []
    for broker in brokers:
        vars(broker.timers).update(timers)
        answered.append(answers_of(broker, encoded(requests)))
    found = [_outcome(broker, answers) for broker, answers in zip(brokers, answered, strict=True)]
    assert found[0] == found[2]
    assert found[1] == found[2]
    return fast, answered[0], left


def _outcome(broker: Broker, answers: Sequence[Command]) -> tuple[object, ...]:
    """The log, its queues, and what was answered, by request."""
    stored = bytes(broker.store.commitlog.read(0, broker.store.commitlog.end_offset))
    told = sorted(
        ((each.opaque, each.code, each.ext, each.remark) for each in answers), key=lambda each: (each[0], each[1])
    )
    return stored, units_of(broker), told


def send(opaque: int, text: str, body: bytes = b"hello", **changes: str) -> Command:
    """A request whose properties are that text."""
    return request(opaque, body, **{"i": text, **changes})


def timed(asks: str, key: str = KEY) -> str:
    return f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01paid\x02{asks}"


ORDINARY = {
    "seconds": timed("TIMER_DELAY_SEC\x0130\x02"),
    "milliseconds": timed("TIMER_DELAY_MS\x011\x02"),
    "a time": timed(f"TIMER_DELIVER_MS\x01{NOW_MS + 4321}\x02"),
    "first": "TIMER_DELAY_SEC\x0130\x02" + timed(""),
    "several": timed(f"TIMER_DELIVER_MS\x01{NOW_MS + 1}\x02TIMER_DELAY_SEC\x013\x02TIMER_DELAY_MS\x019\x02"),
    "with a leg": timed("TIMER_DELAY_SEC\x01259200\x02"),
    "with a leg of half its way": timed("TIMER_DELAY_SEC\x01200000\x02"),
    "as far as it may be": timed("TIMER_DELAY_SEC\x013456000\x02"),
    "with properties of its own": timed(
        'TIMER_DELAY_SEC\x0130\x02mine\x01größe "數" 😀\x02other\x01x\x02KEYS\x01a b\x02'
    ),
    "with leading zeros": timed("TIMER_DELAY_SEC\x01007\x02"),
    "with a long key": timed("TIMER_DELAY_SEC\x017\x02", "k" * 256),
    "with the longest key of a handle": timed("TIMER_DELAY_SEC\x017\x02", "k" * 255),
    "without a tag": f"UNIQ_KEY\x01{KEY}\x02TIMER_DELAY_SEC\x017\x02",
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_what_is_ordinary_is_taken_and_stored_as_by_the_general_path(kind: str) -> None:
    text = ORDINARY[kind]
    requests = [send(n, text, b"x" * n, e=str(n % 4)) for n in range(1, 4)]
    broker, answers, left = check_same([*requests, request(9), send(10, text)])
    assert ({answer.code for answer in answers}, left) == ({0}, [])
    assert broker.timers.key is not None
    for answer in answers:
        if answer.opaque != 9 and "k" * 256 not in text:
            handle = decode_handle(answer.ext["recallHandle"], broker.timers.key)
            assert handle is not None
            assert handle.place == int(answer.ext["queueOffset"])


ODD = {
    "due": timed("TIMER_DELAY_SEC\x010\x02"),
    "long due": timed("TIMER_DELIVER_MS\x011\x02"),
    "negative": timed("TIMER_DELAY_SEC\x01-100000000000000000\x02"),
    "with a plus": timed("TIMER_DELAY_SEC\x01+30\x02"),
    "no number": timed("TIMER_DELAY_SEC\x01soon\x02"),
    "no digits": timed("TIMER_DELAY_SEC\x01३\x02"),
    "a long number": timed("TIMER_DELAY_SEC\x01" + "9" * 18 + "\x02"),
    "a longer number": timed("TIMER_DELAY_SEC\x01" + "9" * 30 + "\x02"),
    "zeros": timed("TIMER_DELAY_SEC\x01" + "0" * 18 + "5\x02"),
    "too far ahead": timed("TIMER_DELAY_SEC\x013456001\x02"),
    "delivered before": timed("TIMER_DELAY_SEC\x0130\x02TIMER_OUT_MS\x011\x02"),
    "forged": timed("TIMER_DELAY_SEC\x0130\x02TIMER_DUE_MS\x011\x02TIMER_PLACE\x017\x02"),
    "a level beats it": timed("TIMER_DELAY_SEC\x0130\x02DELAY\x013\x02"),
    "a recall": timed("TIMER_DELAY_SEC\x0130\x02TIMER_DEL_UNIQKEY\x01T+U\x02"),
    "a place of its own": timed("TIMER_DELAY_SEC\x0130\x02REAL_TOPIC\x01Other\x02"),
    "a queue of its own": timed("REAL_QID\x0177\x02TIMER_DELAY_SEC\x0130\x02"),
    "asked twice": timed("TIMER_DELAY_SEC\x0130\x02TIMER_DELAY_SEC\x0140\x02"),
    "a name twice": timed("TIMER_DELAY_SEC\x0130\x02mine\x01a\x02mine\x01b\x02"),
    "keys twice": timed("KEYS\x01a\x02TIMER_DELAY_SEC\x0130\x02KEYS\x01b\x02"),
    "no wait": timed("TIMER_DELAY_SEC\x0130\x02").replace("true", "false"),
    "a request": timed("TIMER_DELAY_SEC\x0130\x02REPLY_TO_CLIENT\x01c\x02"),
    "half": timed("TIMER_DELAY_SEC\x0130\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02"),
    "no separator at the end": timed("TIMER_DELAY_SEC\x0130"),
    "an empty value": timed("TIMER_DELAY_SEC\x0130\x02mine\x01\x02"),
    "an empty moment": timed("TIMER_DELAY_SEC\x01\x02"),
    "no name": timed("TIMER_DELAY_SEC\x0130\x02\x01value\x02"),
    "a value with a separator": timed("TIMER_DELAY_SEC\x0130\x02a\x01b\x01c\x02"),
    "an unseparated entry": timed("TIMER_DELAY_SEC\x0130\x02abc\x02"),
    "a NUL": timed("TIMER_DELAY_SEC\x0130\x02a\x01b\0\x02"),
    "no unique key": "TIMER_DELAY_SEC\x0130\x02KEYS\x01k\x02",
    "a key with a hyphen": timed("TIMER_DELAY_SEC\x0130\x02", "a-b"),
    "two keys": timed("TIMER_DELAY_SEC\x0130\x02UNIQ_KEY\x01other\x02"),
    "a name that only seems so": timed("MY_TIMER_DELAY_SEC\x0130\x02"),
    "a value that seems so": timed("mine\x01TIMER_DELAY_SEC\x02"),
    "a tag that seems so": timed("TAGS\x01TIMER_DELAY_MS\x02"),
    "keys twice that seem so": timed("KEYS\x01MSG_REGION\x02KEYS\x01DELAY\x02"),
    "a tag twice that seems so, and more": timed("TAGS\x01TIMER_DELAY_MS\x02mine\x01x\x02"),
    "many properties": timed("TIMER_DELAY_SEC\x0130\x02" + "".join(f"n{n}\x01v\x02" for n in range(60))),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_odd_is_done_as_by_the_general_path_amid_others(kind: str) -> None:
    ordinary = ORDINARY["seconds"]
    check_same([send(1, ordinary), send(2, ODD[kind]), send(3, ordinary), request(4), send(5, ODD[kind])])


ASKS = "TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS"
OWN = "REAL_TOPIC TIMER_OUT_MS TIMER_LEG_MS TIMER_DEL_UNIQKEY DELAY INNER_NUM MSG_REGION"
names = st.sampled_from([*ASKS.split(), *OWN.split(), "UNIQ_KEY", "TAGS", "KEYS", "WAIT", "mine", "größe", ""])
NUMBERS = "30 0 -1 +5 1700000030000 1702000000000 259200 172800 172801 3456000 9999999999999999999"
values = st.sampled_from(
    [*NUMBERS.split(), *["true", "false", "AB12", "T+U", "數", "TIMER_DELAY_MS"], "", "x y", "\x01", "\0"]
)
entries = st.tuples(names, values).map(lambda each: f"{each[0]}\x01{each[1]}\x02") | st.sampled_from(
    ["TIMER_DELAY_SEC\x0130\x02", "TIMER_DELIVER_MS\x011700000004321\x02", "UNIQ_KEY\x01AB12\x02", "x", "\x02"]
)
texts = st.lists(entries, max_size=6).map("".join) | st.lists(entries, max_size=3).map(
    lambda each: timed("".join(each))
)
requests = st.tuples(texts, st.integers(-1, 4), st.none() | st.lists(texts, min_size=1, max_size=3))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(requests, min_size=1, max_size=8),
    st.sampled_from([0, NOW_MS - 5, NOW_MS + 45_000]),
    st.sampled_from([1000, 20_000, 2 * DAY_MS]),
    st.booleans(),
)
@example([(timed("TIMER_DELAY_SEC\x0130\x02"), 1, [timed("TIMER_DELAY_MS\x012\x02"), timed("")])], 0, 1000, True)
def test_untidy_messages_are_stored_and_answered_as_by_the_general_path(
    choices: list[tuple[str, int, list[str] | None]], least_due_ms: int, window_ms: int, has_key: bool
) -> None:
    sent = []
    for opaque, (text, queue, items) in enumerate(choices):
        if items is None:
            sent.append(send(opaque, text, e=str(max(0, queue))))
        else:
            body = encode_batch_body([(n, b"b" * (n + 1), item.encode()) for n, item in enumerate(items)])
            sent.append(send(opaque, timed(""), body, e=str(max(0, queue)), m="true"))
    key = bytes(range(32)) if has_key else None
    check_same(sent, least_due_ms=least_due_ms, window_ms=window_ms, key=key)


def test_the_messages_of_a_batch_wait_or_do_not() -> None:
    texts = [timed(""), timed("TIMER_DELAY_SEC\x013\x02", "a"), timed("TIMER_DELAY_SEC\x013\x02", "b"), timed("", "c")]
    for order in (texts, texts[::-1], texts[1:3], texts[1:]):
        body = encode_batch_body([(n, b"b", text.encode()) for n, text in enumerate(order)])
        _, _, left = check_same([send(1, timed(""), body, m="true"), request(2)])
        assert left == []


def test_a_batch_that_asks_as_a_whole_is_refused_whatever_is_in_it(broker: Broker) -> None:
    body = encode_batch_body([(0, b"b", timed("").encode())])
    for asks in ("DELAY\x013\x02", "TIMER_DELAY_SEC\x013\x02"):
        [answer] = answers_of(broker, encoded([send(1, timed(asks), body, m="true")]))
        assert "batch" in (answer.remark or "")
    assert broker.store.commitlog.end_offset == 0


def test_properties_that_leave_no_room_for_the_wait_or_for_further_legs() -> None:
    fill = len(timed("TIMER_DELAY_SEC\x01259200\x02mine\x01\x02"))
    for room in (0, 20, 40, 120, 150, 170, 190, 200, 210, 220, 240, 260, 280, 300):
        text = timed("TIMER_DELAY_SEC\x01{}\x02mine\x01" + "v" * (MAX_PROPERTIES_BYTES - fill - room) + "\x02")
        check_same([send(1, text.format("259200")), send(2, text.format("000030"))])


def test_a_send_one_way_is_stored_and_not_answered(broker: Broker) -> None:
    command = send(1, ORDINARY["seconds"])
    assert answers_of(broker, frame.encode_request(command.code, 1, command.ext, b"b", oneway=True)) == []
    assert [decode_record(record).topic for record in broker.records()] == [TIMER_TOPIC]


def test_timers_go_to_the_next_file_when_one_is_full() -> None:
    requests = [send(n, ORDINARY["seconds"], b"x" * 1000) for n in range(30)]
    broker = Broker(segment_size_bytes=8192)
    answers = answers_of(broker, encoded(requests))
    assert sorted(int(answer.ext["queueOffset"]) for answer in answers) == list(range(30))
    assert [decode_record(record).queue_offset for record in broker.records()] == list(range(30))


def test_before_the_key_of_handles_is_drawn_the_general_path_draws_it(broker: Broker) -> None:
    drawn, broker.timers.key = broker.timers.key, None
    left = left_by_kernel(broker)
    answers = answers_of(broker, encoded([send(1, ORDINARY["seconds"])]))
    broker.timers.key = drawn
    answers += answers_of(broker, encoded([send(2, ORDINARY["seconds"])]))
    assert left == ["T"]
    assert ["recallHandle" in answer.ext for answer in answers] == [False, True]


@given(st.binary(min_size=1, max_size=300), st.binary(min_size=32, max_size=32))
def test_tags_of_handles_are_those_of_the_twin(data: bytes, key: bytes) -> None:
    types = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    tag = ctypes.create_string_buffer(16)
    native_library().function("native_tag", None, *types)(tag, key, data, len(data))
    assert tag.raw == blake2s(data, digest_size=16, key=key).digest()


class Limited(Broker):
    """A broker with a limit of timers in each second."""

    def __init__(self, most: int) -> None:
        super().__init__(1 << 20)
        self.most = most

        def queue_range() -> tuple[int, int]:
            return self.store.min_offset(TIMER_TOPIC, 0), self.store.max_offset(TIMER_TOPIC, 0)

        read_units = partial(self.store.read_units, TIMER_TOPIC, 0)
        self.timers.slots = slots = SlotLimit(lambda: self.most, queue_range, read_units, Done, tuple)

        def dispatched(arrivals: Sequence[Arrival]) -> None:
            for topic, _, end, codes_of in arrivals:
                if topic == TIMER_TOPIC:
                    slots.arrived(end, codes_of)

        self.store.dispatcher.listeners.append(dispatched)

        assert slots.is_set


def test_nothing_that_waits_is_taken_while_it_is_not_known_what_has_room() -> None:
    """As just after a start; the rest is."""
    broker = Limited(3)
    ordinary, odd = timed("TIMER_DELAY_SEC\x0130\x02"), "TIMER_DELAY_SEC\x0130\x02KEYS\x01k\x02"
    answers_of(broker, encoded([send(n, ordinary) for n in range(2)]))
    broker.records()
    slots = broker.timers.slots
    assert slots is not None
    slots.begin()
    assert slots.is_set
    assert slots.is_behind
    batch = encode_batch_body([(n, b"b", ordinary.encode()) for n in range(2)])
    sent = [send(1, ordinary), request(2), send(3, odd), send(4, timed(""), batch, m="true")]
    answers = {each.opaque: each for each in answers_of(broker, encoded(sent))}
    assert {opaque: answer.code for opaque, answer in answers.items()} == {
        1: codes.SYSTEM_BUSY,
        2: 0,
        3: codes.SYSTEM_BUSY,
        4: codes.SYSTEM_BUSY,
    }
    assert "still being counted" in (answers[1].remark or "")
    assert broker.counters.refused[TOO_MANY_WAITING] == 4
    assert not slots.step()
    answers = {each.opaque: each for each in answers_of(broker, encoded([send(5, ordinary), send(6, ordinary)]))}
    assert {opaque: answer.code for opaque, answer in answers.items()} == {5: 0, 6: codes.FLOW_CONTROL}


def test_a_second_that_is_full_takes_no_more_on_either_path() -> None:
    broker = Limited(3)
    ordinary, odd = timed("TIMER_DELAY_SEC\x0130\x02"), "TIMER_DELAY_SEC\x0130\x02KEYS\x01k\x02"
    other = timed("TIMER_DELAY_SEC\x0131\x02")
    batch = encode_batch_body([(n, b"b", ordinary.encode()) for n in range(2)])
    sent = [send(1, ordinary), send(2, ordinary), send(3, timed(""), batch, m="true"), send(4, odd), send(5, odd)]
    sent += [send(6, ordinary), send(7, other), send(8, timed("")), send(9, timed(""), batch, m="true")]
    answers = {each.opaque: each for each in answers_of(broker, encoded(sent))}
    refused = {3, 5, 6, 9}
    assert {opaque for opaque, answer in answers.items() if answer.code != 0} == refused
    for opaque in refused:
        assert answers[opaque].code == codes.FLOW_CONTROL
        assert "3 messages" in (answers[opaque].remark or "")
        assert "timers.max_per_slot" in (answers[opaque].remark or "")
    assert broker.counters.refused[TOO_MANY_DUE] == 5, "of the first batch one message had room, and of the second none"
    assert len(broker.records()) == 5
    [answer] = answers_of(broker, encoded([send(10, ordinary)]))
    assert answer.code == codes.FLOW_CONTROL, "when they are dispatched, they still count"
    broker.most = 4
    answers = {each.opaque: each for each in answers_of(broker, encoded([send(11, ordinary), send(12, ordinary)]))}
    assert {opaque: answer.code for opaque, answer in answers.items()} == {11: 0, 12: codes.FLOW_CONTROL}


def test_a_limit_counts_what_is_due_far_ahead_in_its_second() -> None:
    broker = Limited(2)
    far = timed("TIMER_DELAY_SEC\x01400000\x02")
    sent = [send(n, far if n % 2 else far.replace("UNIQ_KEY", "KEYS")) for n in range(1, 5)]
    answers = {each.opaque: each.code for each in answers_of(broker, encoded(sent))}
    assert answers == {1: 0, 2: 0, 3: codes.FLOW_CONTROL, 4: codes.FLOW_CONTROL}
    broker.records()
    [answer] = answers_of(broker, encoded([send(5, far)]))
    assert answer.code == codes.FLOW_CONTROL


def test_with_a_limit_the_same_is_stored() -> None:
    limited, other = Limited(100), Broker(1 << 20)
    data = encoded([send(n, text) for n, text in enumerate([*ORDINARY.values(), *ODD.values()])])
    left = left_by_kernel(limited)
    answers = [answers_of(each, data) for each in (limited, other)]
    assert [each.ext for each in answers[0]] == [each.ext for each in answers[1]]
    assert limited.records() == other.records()
    assert len(left) <= len(ODD)


SECONDS = st.integers(1, 3).map(lambda seconds: timed(f"TIMER_DELAY_SEC\x01{seconds}\x02"))
FAR = st.integers(1, 3).map(lambda seconds: timed(f"TIMER_DELAY_SEC\x01{300_000 + seconds}\x02"))
limited_texts = SECONDS | FAR | st.sampled_from([timed(""), timed("TIMER_DELAY_SEC\x012\x02").replace("UNIQ", "MY")])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(limited_texts | st.lists(limited_texts, min_size=1, max_size=3), min_size=1, max_size=25),
    st.integers(1, 4),
)
@example([timed("TIMER_DELAY_SEC\x012\x02")] * 3 + [[timed("TIMER_DELAY_SEC\x011\x02")] * 3] * 2, 4)
def test_with_a_limit_the_same_is_stored_and_refused_on_either_path(choices: list[str | list[str]], most: int) -> None:
    sent = []
    for opaque, each in enumerate(choices):
        if isinstance(each, str):
            sent.append(send(opaque, each))
        else:
            body = encode_batch_body([(n, b"b", text.encode()) for n, text in enumerate(each)])
            sent.append(send(opaque, timed(""), body, m="true"))
    check_same(sent, lambda: Limited(most))


def test_a_limit_leaves_nothing_to_the_twin_but_what_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends for later cost the same with it, also those for a second that is almost full."""
    first_left: list[int] = []
    take = Kernel.take_one

    def noting(kernel: Kernel, run: Run, source: Source) -> Taken:
        first_left.append(run.message_count)
        return take(kernel, run, source)

    broker = Limited(30)
    if not isinstance(broker.kernel, NativeKernel):
        return
    monkeypatch.setattr(Kernel, "take_one", noting)
    texts = [timed(f"TIMER_DELAY_SEC\x01{seconds}\x02") for seconds in (30, 31, 400_000, 400_001)]
    body = encode_batch_body([(n, b"b", texts[n].encode()) for n in range(4)])
    sends = [send(n, texts[n % 4]) for n in range(104)] + [send(200 + n, timed(""), body, m="true") for n in range(4)]
    assert {each.code for each in answers_of(broker, encoded(sends))} == {0}
    assert first_left == []
    answers = answers_of(broker, encoded([send(1, texts[1]), send(2, texts[0]), send(3, texts[0]), request(4)]))
    assert {each.opaque for each in answers if each.code} == {1, 2, 3}
    broker.most = 31
    first_left.clear()
    answers = answers_of(broker, encoded([request(0), send(1, texts[1]), send(2, texts[0]), send(3, texts[0])]))
    assert {each.opaque for each in answers if each.code} == {3}
    assert first_left[0] == 3, "the library laid out what is before the one that has no room"


def test_in_turns_with_timers_one_call_of_the_library_takes_all(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what they wait is asked for before the first of them comes, when some came before; and anew in each turn."""
    kernel = broker.kernel
    if not isinstance(kernel, NativeKernel):
        return
    calls: list[int] = []
    send_all = kernel._send
    monkeypatch.setattr(kernel, "_send", lambda areas: calls.append(1) or send_all(areas))
    found = []
    for n, asks in enumerate(("", "TIMER_DELAY_MS\x011\x02", "TIMER_DELAY_MS\x011\x02", "", "")):
        broker.now += 5
        calls.clear()
        answers = answers_of(broker, encoded([send(each, timed(asks)) for each in range(3)]))
        assert {answer.code for answer in answers} == {0}
        found.append(len(calls))
        if asks:
            due_ms = [int(decode_record(each).property_map()["TIMER_DUE_MS"]) for each in broker.records()[-3:]]
            assert due_ms == [broker.now + 1] * 3, n
    assert found[2:] == [1, 1, 1]
    assert found[1] > 1
