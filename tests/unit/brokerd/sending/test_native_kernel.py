"""The kernel in C against its twin in Python: whatever the bytes, the same records, units, answers, numbers and stops."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerd.metadata.configs import TopicConfig
from brokerd.native.building import FLAGS, compile_to, find_compiler, source_dir
from brokerd.native.library import Library
from brokerd.sending import native_kernel
from brokerd.sending.boundary import SendKernel, Stop, Taken
from brokerd.sending.kernel import Kernel
from brokerd.sending.native_check import send_agrees
from brokerd.sending.native_kernel import NativeKernel
from brokerd.store.queues.queue_offsets import TakenOffsets
from brokerd.store.run import Run
from brokerd.timers.rules import Clock
from brokerd.timers.terms import Terms
from remoting.frame import Command
from remoting.record.checksum import is_intact
from remoting.record.hosts import pack_host
from remoting.record.walk import records_in
from tests.support.client_bytes import encode_batch_body, encode_compact
from tests.support.native_library import native_library

HOST, PEER = pack_host("10.0.0.2", 10911), pack_host("10.0.0.1", 40000)
TOPICS = {
    name: TopicConfig(name, queues, queues, 6)
    for name, queues in {"T": 4, "U": 1, "Tt": 2, "Ta": 9, "L" * 127: 1, "%DLQ%g": 1}.items()
}
NOW_MS = 1_700_000_000_000
TERMS = Terms(Clock(NOW_MS, NOW_MS - 5, 172_800_000), 3_456_000_000, bytes(range(32)), "broker-größe")
NEXT = {("T", 1): 5, ("rmq_sys_wheel_timer", 0): 7, ("U", 0): (1 << 40) + 1, ("Ta", 8): 99}
FIELDS = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": str(NOW_MS), "h": "0", "j": "0"}
PROPERTIES = "UNIQ_KEY\x01{:032X}\x02WAIT\x01true\x02TAGS\x01{}\x02"


@pytest.fixture(scope="module")
def plain_library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A build that does without what not every processor has."""
    native_library()
    path = tmp_path_factory.mktemp("plain") / "library.so"
    compile_to(path, find_compiler(), source_dir(), (*FLAGS, "-DWITHOUT_CLMUL"))
    return Library(path)


def kernels(library: Library | None = None) -> tuple[Kernel, NativeKernel]:
    pair = Kernel(HOST, lambda: TERMS), NativeKernel(library or native_library(), HOST, lambda: TERMS)
    for kernel in pair:
        kernel.topics_changed(TOPICS)
    return pair


def new_run(*, seals: bool = True, room: int = 1 << 30) -> Run:
    return Run(1 << 33, (1 << 33) + room, 1 << 20, NOW_MS, TakenOffsets(NEXT), seals)


def outcome(run: Run, taken: Taken) -> Mapping[str, Any]:
    """What a kernel did. Messages of one entry are told one by one: how many entries there are is the kernel's business."""
    units = [
        (topic, queue_id, queue_offset + n, position + n * size, size, code, now_ms)
        for topic, queue_id, queue_offset, position, size, code, now_ms, count in run.entries
        for n in range(count)
    ]
    return {
        "records": b"".join(run.records),
        "units": units,
        "end": (run.end_offset, run.message_count),
        "numbers": dict(run.next_offsets),
        "answers": b"".join(taken.answers),
        "opaques": list(taken.opaques),
        "stop": (taken.position, taken.stop),
    }


def check_same(
    data: bytes, *, most: int = 1000, at: int = 0, library: Library | None = None, **run_of: Any
) -> Mapping[str, Any]:
    """Both kernels, twice: what they learned from the first time changes nothing."""
    pair = kernels(library)
    found: Mapping[str, Any] = {}
    for _ in range(2):
        runs = new_run(**run_of), new_run(**run_of)
        wanted, found = (
            outcome(run, kernel.take(run, data, at, PEER, most)) for kernel, run in zip(pair, runs, strict=True)
        )
        assert found == wanted
    records = found["records"]
    for begin, end in pairwise([*records_in(records), len(records)]):
        assert is_intact(records[begin:end])
    return found


def framed(header: bytes, body: bytes, encoding: int = 0) -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4) + (encoding << 24 | len(header)).to_bytes(4) + header + body


def json_send(fields: Mapping[str, Any], body: bytes = b"b", opaque: Any = 1, **top: Any) -> bytes:
    return framed(json_header(fields, opaque, **top), body)


def json_header(
    fields: Mapping[str, Any], opaque: Any = 1, *, ascii: bool = False, spaced: bool = False, **top: Any
) -> bytes:
    header = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 455, **top}
    separators = None if spaced else (",", ":")
    return json.dumps(header, ensure_ascii=ascii, separators=separators).encode("utf-8", "surrogatepass")


def item(number: int, body: bytes = b"body", tag: str = "t", flag: int = 0) -> tuple[int, bytes, bytes]:
    return flag, body, PROPERTIES.format(number, tag).encode()


SINGLE = {**FIELDS, "i": PROPERTIES.format(7, "t")}
BATCH = {**SINGLE, "m": "true"}
ORDINARY: dict[str, bytes] = {
    "single": json_send(SINGLE),
    "escapes of ASCII": json_send({**SINGLE, "i": PROPERTIES.format(7, "größe-数")}, ascii=True),
    "characters of four bytes": json_send({**SINGLE, "i": PROPERTIES.format(7, "größe-数-😀")}),
    "spaces": json_send(SINGLE, spaced=True),
    "another order": json_send(dict(reversed(SINGLE.items()))),
    "unknown fields": json_send({**SINGLE, "zz": "1", "n": ""}, remark=None, extra=True, serialize="JSON"),
    "properties of its own": json_send({**SINGLE, "i": SINGLE["i"] + 'mine\x01"a\\b"\t\x02KEYS\x01k\x02'}),
    "one-way": json_send(SINGLE, flag=2),
    "compressed": json_send({**SINGLE, "f": "257", "h": "-5", "j": "3"}, b"x" * 5000),
    "without a count of attempts": json_send({name: value for name, value in SINGLE.items() if name != "j"}),
    "compact": encode_compact(Command(310, 9, SINGLE, b"compact")),
    "longest topic": json_send({**SINGLE, "b": "L" * 127, "e": "0"}),
    "large": json_send(SINGLE, b"y" * 100_000),
    "batch": json_send(BATCH, encode_batch_body([item(n) for n in range(40)]), code=320),
    "mixed batch": json_send(BATCH, encode_batch_body([item(n, b"b" * (n + 1), f"t{n}", n) for n in range(40)])),
    "compressed batch": json_send({**BATCH, "f": "1"}, encode_batch_body([item(1)])),
    "a moment": json_send({**SINGLE, "i": SINGLE["i"] + f"TIMER_DELIVER_MS\x01{NOW_MS + 4321}\x02"}),
    "a moment alone": json_send({**SINGLE, "i": "TIMER_DELAY_SEC\x013\x02" + SINGLE["i"]}),
    "a moment of several": json_send({**SINGLE, "i": "TIMER_DELAY_SEC\x013\x02TIMER_DELAY_MS\x017\x02" + SINGLE["i"]}),
    "a moment far ahead": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x01200000\x02mine\x01größe\x02"}),
    "a moment farther ahead": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x01400000\x02"}),
    "a moment of the longest topic": json_send(
        {**SINGLE, "b": "L" * 127, "e": "0", "i": SINGLE["i"] + "TIMER_DELAY_MS\x017\x02"}
    ),
    "a moment one-way": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x017\x02"}, flag=2),
    "a moment and a long key": json_send({**SINGLE, "i": f"UNIQ_KEY\x01{'k' * 256}\x02TIMER_DELAY_MS\x017\x02"}),
    "a tag that seems special": json_send(
        {**SINGLE, "i": PROPERTIES.format(7, "DELAY") + "mine\x01m\x02TIMER_DELAY_MS\x017\x02"}
    ),
    "a batch with a moment": json_send(
        BATCH, encode_batch_body([item(1), (0, b"x", item(1)[2] + b"TIMER_DELAY_MS\x013\x02"), item(2)])
    ),
    "a batch of moments": json_send(
        BATCH, encode_batch_body([(0, b"x", item(n)[2] + b"TIMER_DELAY_MS\x01%d\x02" % (3 + n // 2)) for n in range(9)])
    ),
    "large opaque": json_send(SINGLE, opaque=-(10**17)),
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_the_library_takes_what_is_ordinary_and_leaves_nothing_of_it(kind: str) -> None:
    data = ORDINARY[kind] * 3
    check_same(data)
    _, native = kernels()
    taken = Taken()
    run = new_run()
    frames, stop = native.lay_out(run, data, PEER, 9, taken)
    if "moment" in kind or "special" in kind:  # it has to ask first by what they wait
        assert (frames, stop) == (0, native_kernel._ROOM)
        frames, stop = native.lay_out(run, data, PEER, 9, taken)
    assert (frames, stop) == (3, 0)
    assert taken.position == len(data)


lengths_of_any_size = st.integers(1, 200) | st.integers(1, 5000)


@pytest.mark.parametrize("plainly", [False, True])
@settings(deadline=None)
@given(st.lists(st.tuples(lengths_of_any_size, st.integers(0, 150)), min_size=1, max_size=8), st.integers(0, 99))
def test_bodies_and_properties_of_any_length(
    plain_library: Library, plainly: bool, lengths: list[tuple[int, int]], seed: int
) -> None:
    rng = Random(seed)
    items = [item(n, rng.randbytes(body), "t" * tag) for n, (body, tag) in enumerate(lengths)]
    singles = [json_send({**SINGLE, "i": text.decode()}, body) for _, body, text in items]
    data = b"".join(singles) + json_send(BATCH, encode_batch_body(items), code=320)
    check_same(data, library=plain_library if plainly else None)


OTHER: dict[str, bytes] = {
    "another code": json_send(SINGLE, code=10),
    "an answer": json_send(SINGLE, flag=1),
    "no queue": json_send({**SINGLE, "e": "-1"}),
    "a queue beyond": json_send({**SINGLE, "e": "4"}),
    "an unknown topic": json_send({**SINGLE, "b": "Tu"}),
    "no topic": json_send({**SINGLE, "b": ""}),
    "a number with a space": json_send({**SINGLE, "e": " 1"}),
    "a number of other digits": json_send({**SINGLE, "e": "１"}),
    "a long number": json_send({**SINGLE, "g": "1" * 30}),
    "a number as such": json_send({**SINGLE, "e": 1}),
    "an opaque that is a text": json_send(SINGLE, opaque="1"),
    "an opaque that is no integer": json_send(SINGLE, opaque=1.0),
    "a large opaque": json_send(SINGLE, opaque=10**18),
    "no extFields": json_send({}),
    "extFields twice": framed(json_header(SINGLE)[:-1] + b',"extFields":{"b":"U"}}', b"b"),
    "a code twice": framed(json_header(SINGLE)[:-1] + b',"code":10}', b"b"),
    "a field twice": framed(json_header(SINGLE).replace(b'"b":"T"', b'"b":"T","b":"U","e":"0"'), b"b"),
    "more behind the header": framed(json_header(SINGLE) + b" x", b"b"),
    "a nested value": json_send(SINGLE, more={"a": [1]}),
    "a surrogate": json_send({**SINGLE, "zz": "\ud800"}, ascii=True),
    "a pair of surrogates": json_send({**SINGLE, "i": PROPERTIES.format(1, "😀")}, ascii=True),
    "a raw surrogate": json_send({**SINGLE, "zz": "\ud800"}),
    "a raw control": framed(json_header(SINGLE).replace(b"pg", b"p\x01"), b"b"),
    "no UTF-8": framed(json_header(SINGLE).replace(b"pg", b"p\xff"), b"b"),
    "too long UTF-8": framed(json_header(SINGLE).replace(b"pg", b"\xc0\x80"), b"b"),
    "an unknown escape": framed(json_header(SINGLE).replace(b"pg", b"\\q"), b"b"),
    "a cut escape": framed(json_header(SINGLE).replace(b"pg", b"\\u00"), b"b"),
    "a leading zero": framed(json_header(SINGLE).replace(b'"opaque":1', b'"opaque":01'), b"b"),
    "minus zero": framed(json_header(SINGLE).replace(b'"opaque":1', b'"opaque":-0'), b"b"),
    "a minus": framed(json_header(SINGLE).replace(b'"opaque":1', b'"opaque":-'), b"b"),
    "an unknown encoding": framed(json_header(SINGLE), b"b", 2),
    "no body": json_send(SINGLE, b""),
    "a header that is too long": b"\0\0\0\x08\0\0\0\x40" + bytes(64),
    "a negative length": b"\xff\xff\xff\xf0\0\0\0\x40" + bytes(64),
    "no properties": json_send(FIELDS),
    "no key": json_send({**SINGLE, "i": "TAGS\x01t\x02"}),
    "two keys": json_send({**SINGLE, "i": SINGLE["i"] + "UNIQ_KEY\x01other\x02"}),
    "two tags": json_send({**SINGLE, "i": SINGLE["i"] + "TAGS\x01other\x02"}),
    "a key with a hyphen": json_send({**SINGLE, "i": "UNIQ_KEY\x01a-b\x02"}),
    "no separator at the end": json_send({**SINGLE, "i": SINGLE["i"][:-1]}),
    "a value with a separator": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\x01c\x02"}),
    "an entry without a value": json_send({**SINGLE, "i": SINGLE["i"] + "abc\x02"}),
    "an empty value": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01\x02"}),
    "a NUL": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\0\x02"}),
    "a delay": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x013\x02"}),
    "a moment too far ahead": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELIVER_MS\x011763600000000\x02"}),
    "a moment that has come": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x010\x02"}),
    "a negative moment": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x01-100000000000000000\x02"}),
    "a moment of many digits": json_send({**SINGLE, "i": SINGLE["i"] + f"TIMER_DELAY_SEC\x01{'9' * 18}\x02"}),
    "a moment and a level": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02DELAY\x013\x02"}),
    "a moment twice": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02TIMER_DELAY_SEC\x014\x02"}),
    "a moment and keys twice": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02KEYS\x01a\x02KEYS\x01a\x02"}
    ),
    "a moment and a place": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02REAL_QID\x014\x02"}),
    "a moment among many": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02" + "".join(f"n{n}\x01v\x02" for n in range(40))}
    ),
    "a moment without room for the wait": json_send(
        {**SINGLE, "i": SINGLE["i"] + f"TIMER_DELAY_SEC\x013\x02mine\x01{'v' * 32_500}\x02"}
    ),
    "a moment without room for legs": json_send(
        {**SINGLE, "i": SINGLE["i"] + f"TIMER_DELAY_SEC\x01400000\x02mine\x01{'v' * 32_430}\x02"}
    ),
    "a recall": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x013\x02TIMER_DEL_UNIQKEY\x01T+A\x02"}),
    "a batch that asks as a whole": json_send(
        {**BATCH, "i": SINGLE["i"] + "TIMER_DELAY_MS\x013\x02"}, encode_batch_body([item(1)])
    ),
    "a batch with an odd moment": json_send(
        BATCH, encode_batch_body([item(1), (0, b"x", item(1)[2] + b"TIMER_DELAY_MS\x010\x02")])
    ),
    "a batch with a moment amid no UTF-8": json_send(
        BATCH, encode_batch_body([(0, b"x", item(1)[2] + b"TIMER_DELAY_MS\x013\x02mine\x01\xff\x02")])
    ),
    "no wait": json_send({**SINGLE, "i": SINGLE["i"] + "WAIT\x01false\x02"}),
    "too many properties": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01" + "b" * 32_700 + "\x02"}),
    "an empty batch": json_send(BATCH, b"\0" * 22),
    "a batch with an odd message": json_send(BATCH, encode_batch_body([item(1), (0, b"x", b"K\x01v\x02")])),
    "a batch with a message of nothing": json_send(BATCH, encode_batch_body([item(1), (0, b"", item(1)[2])])),
    "a batch with a tag that is no UTF-8": json_send(
        BATCH, encode_batch_body([(0, b"x", b"UNIQ_KEY\x01a\x02TAGS\x01\xff\xfe\x02")])
    ),
    "a batch that is cut": json_send(BATCH, encode_batch_body([item(1), item(2)])[:-1]),
    "a compact header that is cut": framed(encode_compact(Command(310, 9, SINGLE))[8:40], b"b", 1),
}


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("seals", [True, False])
def test_what_is_not_ordinary_is_done_as_in_python_amid_others(kind: str, seals: bool) -> None:
    single, batch = ORDINARY["single"], ORDINARY["batch"]
    check_same(single + OTHER[kind] + single + batch, seals=seals)
    check_same(batch + OTHER[kind] * 40 + single, seals=seals)


@pytest.mark.parametrize("kind", ["single", "batch", "mixed batch"])
def test_where_a_file_of_the_log_ends(kind: str) -> None:
    data = ORDINARY[kind] * 2
    size = len(check_same(data)["records"])
    for room in (0, 1, size // 2 - 1, size // 2, size - 1, size, size + 1):
        found = check_same(data + ORDINARY["single"], room=room)
        assert found["stop"][1] is Stop.FULL or room > size
    assert check_same(data, room=100)["stop"][1] is Stop.FULL


def test_a_buffer_that_ends_anywhere() -> None:
    data = ORDINARY["single"] + ORDINARY["compact"]
    for end in range(len(data)):
        found = check_same(data[:end])
        assert found["stop"] == (len(ORDINARY["single"]) if end >= len(ORDINARY["single"]) else 0, Stop.END)


def test_no_more_is_taken_than_was_asked_for() -> None:
    odd = OTHER["no queue"]
    for most in (1, 2, 3, 17, 30):
        check_same((ORDINARY["single"] * 2 + odd) * 10, most=most)
        check_same(odd * 40 + ORDINARY["batch"], most=most)


@pytest.mark.parametrize(
    ("room", "least"),
    [("_RECORDS_BYTES", 9000), ("_ANSWERS_BYTES", 2500), ("_UNITS", 3), ("_FRAMES", 2), ("_SCRATCH_BYTES", 99)],
)
def test_what_has_no_room_at_once_is_done_in_several_calls_or_in_python(
    monkeypatch: pytest.MonkeyPatch, room: str, least: int
) -> None:
    monkeypatch.setattr(native_kernel, room, least)
    for kinds in (["single"], ["batch", "mixed batch"], list(ORDINARY)):
        check_same(b"".join(ORDINARY[kind] for kind in kinds) * 4)


def test_numbers_that_others_took_are_seen() -> None:
    """Guesses of the last call are wrong when somebody else appended, a run was dropped, or a topic was made again."""
    _, native = kernels()
    data = ORDINARY["single"] * 2 + json_send({**SINGLE, "b": "U", "e": "0"})
    for numbers in ({}, {("T", 1): 7}, {("T", 1): 9, ("U", 0): 1}, {}):
        run = Run(0, 1 << 30, 1 << 20, NOW_MS, TakenOffsets(numbers), True)
        native.take(run, data, 0, PEER, 9)
        first, second = numbers.get(("T", 1), 0), numbers.get(("U", 0), 0)
        assert [(entry[0], entry[2], entry[7]) for entry in run.entries] == [
            ("T", first, 1),
            ("T", first + 1, 1),
            ("U", second, 1),
        ]
        assert dict(run.next_offsets) == {("T", 1): first + 2, ("U", 0): second + 1}


def test_topics_come_change_and_go() -> None:
    pair = kernels()
    data = b"".join(json_send({**SINGLE, "b": name, "e": "2"}) for name in ("T", "Ta", "New", "T"))
    for changes in (
        {"Ta": None},
        {"New": TopicConfig("New", 3, 3, 6), "Ta": TopicConfig("Ta", 3, 3, 6)},
        {"T": TopicConfig("T", 2, 2, 6)},
        {"T": TopicConfig("T", 3, 3, 4)},
        dict.fromkeys((*TOPICS, "New")),
        TOPICS,
    ):
        runs = new_run(), new_run()
        for kernel in pair:
            kernel.topics_changed(changes)
        wanted, found = (
            outcome(run, kernel.take(run, data, 0, PEER, 9)) for kernel, run in zip(pair, runs, strict=True)
        )
        assert found == wanted
        assert pair[0].topics == pair[1].topics


def test_peers_and_hosts_with_ipv6_are_for_the_general_path() -> None:
    kernel: SendKernel = kernels()[1]
    run, peer = new_run(), pack_host("fe80::1", 1)
    assert kernel.take(run, ORDINARY["single"], 0, peer, 9).stop is Stop.OTHER
    other = NativeKernel(native_library(), peer)
    other.topics_changed(TOPICS)
    assert other.take(run, ORDINARY["single"], 0, PEER, 9).stop is Stop.OTHER
    assert not run.records


def test_the_check_at_load_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert send_agrees(native_library())
    take: Callable[..., Taken] = Kernel.take

    def other(self: Kernel, run: Run, *rest: Any) -> Taken:
        taken = take(self, run, *rest)
        run.records.append(b"?")
        return taken

    monkeypatch.setattr(Kernel, "take", other)
    assert not send_agrees(native_library())


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["", "0", "1", "T", "true"])
values = texts | st.integers(-(10**19), 10**19) | st.none() | st.booleans() | st.floats(allow_nan=False)
entries = st.sampled_from(
    [
        "UNIQ_KEY\x01A1\x02",
        "WAIT\x01true\x02",
        "TAGS\x01t\x02",
        "KEYS\x01k\x02",
        "own\x01v\x02",
        "DELAY\x011\x02",
        "TIMER_DELAY_MS\x011\x02",
        "x\x02",
    ]
) | texts.map(lambda text: f"K\x01{text}\x02")
properties = st.lists(entries, max_size=6).map("".join) | texts
fields = st.fixed_dictionaries(
    {"i": properties | st.just(SINGLE["i"]), "m": st.sampled_from(["true", "false", ""])},
    optional={
        "b": st.sampled_from([*TOPICS, "no"]),
        "e": st.sampled_from(["0", "1", "-1", "3", "9", "+1", "x"]),
        "f": st.sampled_from(["0", "1", "256", "1024", "4", "-1"]),
        "g": st.integers(-5, 1 << 63).map(str),
        "h": st.integers(-(1 << 32), 1 << 32).map(str),
        "j": st.sampled_from(["0", "", "5", "40000", "-1"]),
        "zz": values,
    },
).map(lambda some: {**FIELDS, **some})
bodies = st.binary(max_size=300) | st.lists(
    st.builds(item, st.integers(0, 99), st.binary(max_size=40), texts, st.integers(-5, 5)), max_size=6
).map(encode_batch_body)
jsons = st.builds(
    lambda fields, body, ascii, spaced, top: framed(json_header(fields, ascii=ascii, spaced=spaced, **top), body),
    fields,
    bodies,
    st.booleans(),
    st.booleans(),
    st.fixed_dictionaries(
        {},
        optional={
            "code": st.sampled_from([310, 320, 10, 310.0, "310"]),
            "flag": st.sampled_from([0, 1, 2, 3, -2, True]),
            "remark": values,
            "opaque": values,
        },
    ),
)
compacts = st.builds(
    lambda fields, body, flag: encode_compact(Command(310, 3, {**fields, "zz": "v"}, body, flag)),
    fields,
    bodies,
    st.sampled_from([0, 2]),
)
frames = jsons | compacts | st.sampled_from([*ORDINARY.values()][:12])
damage = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3)


@settings(deadline=None, max_examples=300)
@given(st.lists(frames, min_size=1, max_size=6), damage, st.booleans(), st.integers(1, 8))
@example([ORDINARY["single"]], [(8, 0)], True, 1)
def test_whatever_is_sent_both_do_the_same(
    sent: list[bytes], changes: list[tuple[int, int]], seals: bool, most: int
) -> None:
    data = bytearray(b"".join(sent))
    for place, value in changes:
        data[place % len(data)] = value
    check_same(bytes(data), seals=seals, most=most)


@pytest.mark.parametrize("seed", range(4))
def test_ordinary_sends_with_bytes_changed(seed: int) -> None:
    """Where a byte was changed the parsers are near what they take."""
    rng = Random(seed)
    kinds = ["single", "properties of its own", "compact", "mixed batch", "escapes of ASCII"]
    for _ in range(400):
        data = bytearray(ORDINARY[rng.choice(kinds)])
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(min(len(data), 700))
            data[place] = rng.choice(
                (data[place] ^ 1 << rng.randrange(8), rng.randrange(256), *b'"\\{}:,0\x00\x01\x02')
            )
        check_same(ORDINARY["single"] + data + ORDINARY["batch"], seals=bool(rng.randrange(2)))
