"""The kernel in C against its twin in Python: whatever the bytes, the same records, units, answers, numbers and stops."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerd.delay.levels import DEFAULT_DELAYS
from brokerd.metadata.configs import TopicConfig
from brokerd.native.building import FLAGS, compile_to, find_compiler, source_dir
from brokerd.native.library import Library
from brokerd.sending import native_kernel
from brokerd.sending.boundary import Stop, Taken
from brokerd.sending.halves import LaidOutHalves
from brokerd.sending.kernel import Kernel
from brokerd.sending.native_check import send_agrees
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.reading import _LONG_NAMES
from brokerd.sending.stored_form import KernelRules
from brokerd.sending.unique_ids import UniqueIds
from brokerd.store.queues.queue_offsets import TakenOffsets
from brokerd.store.run import Run
from brokerd.timers.rules import Clock
from brokerd.timers.terms import Terms
from brokerd.transactions.decide import HalfRoom
from brokerd.transactions.records import Half
from remoting.frame import Command, decode_frames
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


class Transactions:
    """Room for some transactions; what began is remembered."""

    def __init__(self, count: int = 1000, size_bytes: int = 1 << 30) -> None:
        self.begun_halves: list[Half] = []
        self._room = HalfRoom(count, size_bytes)

    def room(self) -> HalfRoom:
        return self._room

    def begun(self, halves: Sequence[Half], end_offset: int) -> None:
        self.begun_halves += halves


def rules(transactions: Transactions | None = None) -> KernelRules:
    halves = LaidOutHalves(transactions or Transactions())
    return KernelRules(UniqueIds(NOW_MS), lambda: TERMS, DEFAULT_DELAYS, "c", halves)


def kernels(library: Library | None = None, host: bytes = HOST) -> tuple[Kernel, NativeKernel]:
    pair = Kernel(host, rules()), NativeKernel(library or native_library(), host, rules())
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
        "early": (b"".join(taken.early.answers), taken.early.opaques) if taken.early is not None else None,
        "halves": [half for told in run.appended for half in told.args[0]],  # type: ignore[attr-defined]
    }


def check_same(
    data: bytes,
    *,
    most: int = 1000,
    at: int = 0,
    library: Library | None = None,
    peer: bytes = PEER,
    host: bytes = HOST,
    topics: Mapping[str, int] | None = None,
    **run_of: Any,
) -> Mapping[str, Any]:
    """Both kernels, twice: what they learned from the first time changes nothing."""
    pair = kernels(library, host)
    for kernel in pair:
        kernel.topics_changed({name: TopicConfig(name, queues, queues, 6) for name, queues in (topics or {}).items()})
    found: Mapping[str, Any] = {}
    for _ in range(2):
        runs = new_run(**run_of), new_run(**run_of)
        wanted, found = (
            outcome(run, kernel.take(run, data, at, peer, most)) for kernel, run in zip(pair, runs, strict=True)
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


def long_named(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_LONG_NAMES[name]: value for name, value in fields.items()}


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
    "long names": json_send(long_named(SINGLE), code=10),
    "long names of a batch": json_send(long_named(BATCH), encode_batch_body([item(1), item(2)]), code=10),
    "compact long names": encode_compact(Command(10, 9, long_named(SINGLE), b"compact")),
    "a code behind all": framed(json.dumps({"opaque": 3, "extFields": SINGLE, "flag": 0, "code": 310}).encode(), b"b"),
    "fields that are no texts": json_send({**SINGLE, "e": 1, "h": -5, "k": False, "m": False, "j": None}),
    "no properties": json_send(FIELDS),
    "empty properties": json_send({**SINGLE, "i": ""}),
    "no key": json_send({**SINGLE, "i": "TAGS\x01t\x02"}),
    "no key and no separator": json_send({**SINGLE, "i": "TAGS\x01größe"}),
    "no separator at the end": json_send({**SINGLE, "i": SINGLE["i"][:-1]}),
    "a value like a name of the broker's": json_send({**SINGLE, "i": SINGLE["i"] + "note\x01no DELAY, TRAN_MSG\x02"}),
    "a FIFO key": json_send({**SINGLE, "i": SINGLE["i"] + "__SHARDINGKEY\x01order\x02"}),
    "a FIFO key and no separator": json_send({**SINGLE, "i": SINGLE["i"] + "__SHARDINGKEY\x01order"}),
    "level 0": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x010\x02"}),
    "a moment at level 0": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x010\x02TIMER_DELAY_MS\x017\x02"}),
    "half at level 0": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x010\x02TRAN_MSG\x01true\x02PGROUP\x01g"}),
    "a batch with an empty value as a whole": json_send({**BATCH, "i": "KEYS\x01\x02"}, encode_batch_body([item(1)])),
    "a batch at level 0": json_send(BATCH, encode_batch_body([item(1), (0, b"x", b"DELAY\x010")])),
    "a level": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x013\x02"}),
    "the last level": json_send({**SINGLE, "i": "DELAY\x0118\x02" + SINGLE["i"][:-1]}),
    "a level without a key": json_send({**SINGLE, "i": "DELAY\x011"}),
    "a level of the longest topic": json_send({**SINGLE, "b": "L" * 127, "e": "0", "i": "DELAY\x012\x02"}),
    "half": json_send({**SINGLE, "f": "4", "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02"}),
    "half without a flag": json_send({**SINGLE, "g": str(NOW_MS + 9), "i": "PGROUP\x01g\x02TRAN_MSG\x01true"}),
    "half of the longest topic": json_send(
        {**SINGLE, "b": "L" * 127, "e": "0", "i": "PGROUP\x01g\x02TRAN_MSG\x01true"}
    ),
    "half and compressed": json_send({**SINGLE, "f": "261", "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g"}),
    "half one-way": json_send({**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g"}, flag=2),
    "a moment and no separator": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x017"}),
    "a moment and no key": json_send({**SINGLE, "i": "TIMER_DELAY_MS\x017\x02"}),
    "a batch without properties": json_send(BATCH, encode_batch_body([(n, b"x" * (n + 1), b"") for n in range(9)])),
    "a batch of alike without properties": json_send(BATCH, encode_batch_body([(0, b"x", b"")] * 9)),
    "a batch without separators": json_send(BATCH, encode_batch_body([(0, b"x", item(n)[2][:-1]) for n in range(9)])),
    "a request": json_send({**SINGLE, "i": SINGLE["i"] + "REPLY_TO_CLIENT\x01c\x02"}),
    "a request without a key": json_send({**SINGLE, "i": "REPLY_TO_CLIENT\x01c\x02"}),
    "a request at a level": json_send({**SINGLE, "i": SINGLE["i"] + "REPLY_TO_CLIENT\x01c\x02DELAY\x012"}),
    "half and a request": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02REPLY_TO_CLIENT\x01c"}
    ),
    "no wait": json_send({**SINGLE, "i": "UNIQ_KEY\x01A\x02WAIT\x01false\x02"}),
    "no wait, a level": json_send({**SINGLE, "i": "UNIQ_KEY\x01A\x02WAIT\x01false\x02DELAY\x011\x02"}),
    "no wait, one-way": json_send({**SINGLE, "i": "UNIQ_KEY\x01A\x02WAIT\x01false\x02"}, flag=2),
    "a batch without wait": json_send(BATCH, encode_batch_body([(0, b"x", b"WAIT\x01false")] * 3)),
    "a batch with and without wait": json_send(BATCH, encode_batch_body([(0, b"x", b"WAIT\x01false"), item(1)])),
    "a key with a hyphen": json_send({**SINGLE, "i": "UNIQ_KEY\x01a-b c\x02"}),
    "a moment and a key with a hyphen": json_send({**SINGLE, "i": "UNIQ_KEY\x01a-b\x02TIMER_DELAY_MS\x013\x02"}),
    "half and a key with a hyphen": json_send(
        {**SINGLE, "i": "UNIQ_KEY\x01a-b\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02"}
    ),
    "a batch of all": json_send(
        BATCH, encode_batch_body([item(1), (0, b"x", b""), (1, b"y", item(2)[2][:-1]), (0, b"z", b"own\x01v"), item(3)])
    ),
    "a batch with a moment without properties": json_send(
        BATCH, encode_batch_body([(0, b"x", b""), (0, b"y", b"TIMER_DELAY_MS\x013\x02"), (0, b"z", b"a\x01b")])
    ),
    "large opaque": json_send(SINGLE, opaque=-(10**17)),
    "no queue": json_send({**SINGLE, "e": "-1"}),
    "no queue, compact": encode_compact(Command(310, 9, {**SINGLE, "e": "-7"}, b"compact")),
    "no queue of a batch": json_send({**BATCH, "e": "-1"}, encode_batch_body([item(1), item(2)])),
    "no queue at a level": json_send({**SINGLE, "e": "-1", "i": SINGLE["i"] + "DELAY\x013\x02"}),
    "no queue of half": json_send({**SINGLE, "e": "-1", "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g"}),
    "open and a name twice": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\x02a\x01c"}),
    "open and names twice": json_send(
        {**SINGLE, "i": "a\x01b\x02KEYS\x011\x02" + SINGLE["i"] + "a\x01cc\x02b\x01c\x02a\x01d"}
    ),
    "a level and a name twice": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02a\x01bbb\x02a\x01c\x02"}),
    "half and a name twice": json_send(
        {**SINGLE, "i": SINGLE["i"] + "a\x01b\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02a\x01größe"}
    ),
    "no key and a name twice": json_send({**SINGLE, "i": "a\x01b\x02a\x01c\x02"}),
    "a name twice that is stored as it came": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\x02a\x01c\x02"}),
    "a moment and keys twice": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02KEYS\x01a\x02KEYS\x01a\x02"}
    ),
    "a batch with names twice": json_send(
        BATCH, encode_batch_body([(0, b"x", b"a\x01b\x02a\x01c"), item(1), (0, b"x", b"a\x01b\x02a\x01c\x02b\x01c")])
    ),
    "values in values": json_send(
        SINGLE, more={"a": [1, {"b": [], "c": {}}, "d", None, -1.5, 0.25, True, [[[]]]], "é": "\n"}, n=-0.5, m=[]
    ),
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_the_library_takes_what_is_ordinary_and_leaves_nothing_of_it(kind: str) -> None:
    data = ORDINARY[kind] * 3
    check_same(data)
    _, native = kernels()
    taken = Taken()
    run = new_run()
    frames, stop = native.lay_out(run, data, PEER, 9, taken)
    if "moment" in kind or "seems special" in kind:  # it has to ask first by what they wait
        assert (frames, stop) == (0, native_kernel._ROOM)
        frames, stop = native.lay_out(run, data, PEER, 9, taken)
    assert (frames, stop) == (3, 0)
    assert taken.position == len(data)


RECORDED = sorted((Path(__file__).parents[3] / "golden" / "sends").iterdir())


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_the_library_takes_all_that_the_clients_of_the_original_wrote(path: Path) -> None:
    data = path.read_bytes()
    commands: list[Command] = []
    decode_frames(data, commands)
    topics = {each.ext.get("b") or each.ext["topic"]: 4 for each in commands}
    _, native = kernels()
    native.topics_changed({name: TopicConfig(name, queues, queues, 6) for name, queues in topics.items()})
    frames, stop = native.lay_out(new_run(), data, PEER, 1000, taken := Taken())
    assert (frames, stop, taken.position) == (len(commands), 0, len(data))
    check_same(data, topics=topics)


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
    "long names and short ones": json_send({**long_named(SINGLE), "b": "Tu", "i": "x"}, code=10),
    "another code": json_send(SINGLE, code=11),
    "short names of long ones": json_send(SINGLE, code=10),
    "long names of short ones": json_send(long_named(SINGLE)),
    "a level that is none": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x01soon\x02"}),
    "a negative level": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x01-1\x02"}),
    "a level with a sign": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x01+3\x02"}),
    "a level with zeros": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x01003\x02"}),
    "a level beyond": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x0119\x02"}),
    "a level twice": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02DELAY\x012\x02"}),
    "a level and a place": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02REAL_TOPIC\x01U\x02"}),
    "a level and a stamp": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02TRACE_ON\x01false\x02"}),
    "a level of one who does not wait": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02WAIT\x01false\x02"}),
    "a level in a batch": json_send(BATCH, encode_batch_body([item(1), (0, b"x", b"DELAY\x011\x02")])),
    "a level without room": json_send({**SINGLE, "i": SINGLE["i"] + f"DELAY\x011\x02mine\x01{'v' * 32_580}\x02"}),
    "half and a level": json_send({**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02DELAY\x013\x02"}),
    "half and a moment": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02TIMER_DELAY_MS\x013\x02"}
    ),
    "half without a group": json_send({**SINGLE, "f": "4", "i": SINGLE["i"] + "TRAN_MSG\x01true\x02"}),
    "half by its flag alone": json_send({**SINGLE, "f": "4"}),
    "half by its flag alone, and open": json_send({**SINGLE, "f": "8", "i": SINGLE["i"][:-1]}),
    "half in capitals": json_send({**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01TRUE\x02PGROUP\x01g\x02"}),
    "not half": json_send({**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01false\x02PGROUP\x01g\x02"}),
    "half and its checks": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02TRANSACTION_CHECK_TIMES\x013\x02"}
    ),
    "half and its immunity": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x019\x02"}
    ),
    "half in a batch": json_send(
        BATCH, encode_batch_body([item(1), (0, b"x", b"TRAN_MSG\x01true\x02PGROUP\x01g\x02")])
    ),
    "a half batch": json_send({**BATCH, "f": "4"}, encode_batch_body([item(1)])),
    "half without room": json_send(
        {**SINGLE, "i": SINGLE["i"] + f"TRAN_MSG\x01true\x02PGROUP\x01g\x02mine\x01{'v' * 32_300}\x02"}
    ),
    "open and a name twice that says something": json_send(
        {**SINGLE, "i": SINGLE["i"] + "REPLY_TO_CLIENT\x01b\x02REPLY_TO_CLIENT\x01c"}
    ),
    "half by its flag alone, and a name twice": json_send(
        {**SINGLE, "f": "8", "i": SINGLE["i"] + "a\x01b\x02a\x01c\x02"}
    ),
    "open, many, and one twice": json_send(
        {**SINGLE, "i": SINGLE["i"] + "".join(f"n{n}\x01v\x02" for n in range(62)) + "n5\x01w\x02n6\x01u"}
    ),
    "open and no UTF-8": json_send(BATCH, encode_batch_body([(0, b"x", b"a\x01\xff")])),
    "open and an entry without a value": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01"}),
    "open and an entry without a name": json_send({**SINGLE, "i": SINGLE["i"] + "\x01a"}),
    "open and many": json_send({**SINGLE, "i": SINGLE["i"] + "".join(f"n{n}\x01v\x02" for n in range(80)) + "a\x01b"}),
    "open and a handle of POP": json_send({**SINGLE, "i": SINGLE["i"] + "POP_CK\x011 2\x02a\x01b"}),
    "a request and a cluster": json_send({**SINGLE, "i": SINGLE["i"] + "REPLY_TO_CLIENT\x01c\x02CLUSTER\x01d\x02"}),
    "a key with a quote": json_send({**SINGLE, "i": 'UNIQ_KEY\x01a"b\x02'}),
    "a key that is no ASCII": json_send({**SINGLE, "i": "UNIQ_KEY\x01größe\x02"}),
    "WAIT that is neither": json_send({**SINGLE, "i": "UNIQ_KEY\x01A\x02WAIT\x01perhaps\x02"}),
    "other flags": json_send({**SINGLE, "f": "16"}),
    "flags of batches kept as one": json_send({**SINGLE, "f": "128"}),
    "a field that is a fraction": json_send({**SINGLE, "e": 1.0}),
    "a field that is a list": json_send({**SINGLE, "zz": []}),
    "an answer": json_send(SINGLE, flag=1),
    "no queue and two keys": json_send({**SINGLE, "e": "-1", "i": SINGLE["i"] + "UNIQ_KEY\x01other\x02"}),
    "no queue and no topic": json_send({**SINGLE, "e": "-1", "b": "Tu"}),
    "no queue without room": json_send({**SINGLE, "e": "-1", "i": SINGLE["i"] + "a\x01" + "b" * 32_700 + "\x02"}),
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
    "values in values in values": json_send(SINGLE, more=[[[[[[[[[[1]]]]]]]]]]),
    "a value with an exponent": json_send(SINGLE, more=1e300),
    "a value of many digits": json_send(SINGLE, more=10**40),
    "a fraction of many digits": framed(json_header(SINGLE)[:-1] + b',"more":1.%b}' % (b"1" * 40), b"b"),
    **{
        f"no value: {text!r}": framed(json_header(SINGLE)[:-1] + b',"more":%b}' % text, b"b")
        for text in (
            b"1.",
            b".5",
            b"-",
            b"-a",
            b"00",
            b"1.5.5",
            b"[1,]",
            b"[",
            b"{",
            b"{1:2}",
            b'{"a"}',
            b'{"a":}',
            b"]",
            b"1.-5",
        )
    },
    "minus zero elsewhere": framed(json_header(SINGLE)[:-1] + b',"more":-0,"most":[-0.0]}', b"b"),
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
    "two keys": json_send({**SINGLE, "i": SINGLE["i"] + "UNIQ_KEY\x01other\x02"}),
    "two tags": json_send({**SINGLE, "i": SINGLE["i"] + "TAGS\x01other\x02"}),
    "a value with a separator": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\x01c\x02"}),
    "an entry without a value": json_send({**SINGLE, "i": SINGLE["i"] + "abc\x02"}),
    "an empty value": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01\x02"}),
    "a NUL": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\0\x02"}),
    "a moment too far ahead": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELIVER_MS\x011763600000000\x02"}),
    "a moment that has come": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x010\x02"}),
    "a negative moment": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x01-100000000000000000\x02"}),
    "a moment of many digits": json_send({**SINGLE, "i": SINGLE["i"] + f"TIMER_DELAY_SEC\x01{'9' * 18}\x02"}),
    "a moment and a level": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02DELAY\x013\x02"}),
    "a moment twice": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02TIMER_DELAY_SEC\x014\x02"}),
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
    odd = OTHER["two keys"]
    for most in (1, 2, 3, 17, 30):
        check_same((ORDINARY["single"] * 2 + odd) * 10, most=most)
        check_same(odd * 40 + ORDINARY["batch"], most=most)


@pytest.mark.parametrize(
    ("room", "least"),
    [
        ("_RECORDS_BYTES", 9000),
        ("_ANSWERS_BYTES", 2500),
        ("_UNITS", 3),
        ("_FRAMES", 4),
        ("_HALVES", 1),
        ("_SCRATCH_BYTES", 99),
    ],
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


@pytest.mark.parametrize("kind", ORDINARY)
def test_peers_and_hosts_with_ipv6(kind: str) -> None:
    data, longer = ORDINARY[kind] * 2, pack_host("fe80::1", 1)
    for peer, host in ((longer, HOST), (PEER, longer), (longer, longer)):
        assert check_same(data, peer=peer, host=host)["stop"] == (len(data), Stop.END)


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
        "DELAY\x0119\x02",
        "TRAN_MSG\x01true\x02",
        "PGROUP\x01g\x02",
        "REAL_QID\x011\x02",
        "WAIT\x01false\x02",
        "REPLY_TO_CLIENT\x01c\x02",
        "TRACE_ON\x01true\x02",
        "TIMER_DELAY_MS\x011\x02",
        "x\x02",
    ]
) | texts.map(lambda text: f"K\x01{text}\x02")
closed_properties = st.lists(entries, max_size=6).map("".join)
properties = closed_properties | closed_properties.map(lambda text: text[:-1]) | texts
fields = st.fixed_dictionaries(
    {"i": properties | st.just(SINGLE["i"]), "m": st.sampled_from(["true", "false", ""])},
    optional={
        "b": st.sampled_from([*TOPICS, "no"]),
        "e": st.sampled_from(["0", "1", "-1", "3", "9", "+1", "x"]),
        "f": st.sampled_from(["0", "1", "256", "1024", "4", "12", "16", "-1"]),
        "g": st.integers(-5, 1 << 63).map(str),
        "h": st.integers(-(1 << 32), 1 << 32).map(str),
        "j": st.sampled_from(["0", "", "5", "40000", "-1"]),
        "zz": values,
    },
).map(lambda some: {**FIELDS, **some})
bodies = st.binary(max_size=300) | st.lists(
    st.builds(item, st.integers(0, 99), st.binary(max_size=40), texts, st.integers(-5, 5))
    | st.tuples(st.integers(-5, 5), st.binary(max_size=40), properties.map(str.encode)),
    max_size=6,
).map(encode_batch_body)
jsons = st.builds(
    lambda fields, body, ascii, spaced, top: framed(json_header(fields, ascii=ascii, spaced=spaced, **top), body),
    fields | fields.map(lambda some: {_LONG_NAMES.get(name, name): value for name, value in some.items()}),
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
peers = st.sampled_from([PEER, pack_host("fe80::1", 1)])
frames = jsons | compacts | st.sampled_from([*ORDINARY.values()])
damage = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3)


@settings(deadline=None, max_examples=300)
@given(st.lists(frames, min_size=1, max_size=6), damage, st.booleans(), st.integers(1, 8), peers)
@example([ORDINARY["single"]], [(8, 0)], True, 1, PEER)
def test_whatever_is_sent_both_do_the_same(
    sent: list[bytes], changes: list[tuple[int, int]], seals: bool, most: int, peer: bytes
) -> None:
    data = bytearray(b"".join(sent))
    for place, value in changes:
        data[place % len(data)] = value
    check_same(bytes(data), seals=seals, most=most, peer=peer)


@pytest.mark.parametrize("kind", ["half", "half without a flag", "half one-way"])
@pytest.mark.parametrize("room", [(0, 1 << 30), (2, 1 << 30), (9, 700), (9, 0), (-1, 1 << 30)])
def test_transactions_begin_while_there_is_room(kind: str, room: tuple[int, int]) -> None:
    """Those that a run has count already, whoever laid them out."""
    data = ORDINARY[kind] * 5 + ORDINARY["single"]
    taken = []
    for kernel in (
        Kernel(HOST, rules(Transactions(*room))),
        NativeKernel(native_library(), HOST, rules(Transactions(*room))),
    ):
        kernel.topics_changed(TOPICS)
        run = new_run()
        first = kernel.take(run, data, 0, PEER, 1)
        taken.append(outcome(run, kernel.take(run, data, first.position, PEER, 9)))
    assert taken[0] == taken[1]
    assert len(taken[0]["halves"]) <= max(room[0], 0)


@pytest.mark.parametrize("seed", range(4))
def test_ordinary_sends_with_bytes_changed(seed: int) -> None:
    """Where a byte was changed the parsers are near what they take."""
    rng = Random(seed)
    kinds = ["single", "properties of its own", "compact", "mixed batch", "escapes of ASCII", "half", "the last level"]
    kinds += ["long names", "no key and no separator", "a batch of all"]
    for _ in range(400):
        data = bytearray(ORDINARY[rng.choice(kinds)])
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(min(len(data), 700))
            data[place] = rng.choice(
                (data[place] ^ 1 << rng.randrange(8), rng.randrange(256), *b'"\\{}:,0\x00\x01\x02')
            )
        check_same(ORDINARY["single"] + data + ORDINARY["batch"], seals=bool(rng.randrange(2)))


def test_queues_that_the_broker_chooses_follow_one_another_whoever_lays_out() -> None:
    _, native = kernels()
    free, ordinary = {**SINGLE, "e": "-1"}, ORDINARY["single"]
    run = new_run()

    def take(*frames: bytes) -> list[int]:
        before = len(run.entries)
        assert native.take(run, b"".join(frames), 0, PEER, 1000).stop is Stop.END
        return [queue_id for _, queue_id, *_ in run.entries[before:]]

    assert take(json_send(free), ordinary, json_send(free)) == [1, 1, 2]
    native.take_decoded(run, [Command(310, 1, free, b"b")], 0, PEER)
    assert run.entries[-1][1] == 3
    assert take(json_send(free), json_send(free)) == [0, 1]
    assert take(json_send({**free, "b": "Ta"}), json_send(free)) == [1, 2]
    native.topics_changed({"T": TopicConfig("T", 2, 2, 6), "Ta": None})
    assert take(json_send(free), json_send(free), json_send(free)) == [1, 0, 1]
    leaves = json_send({**free, "i": "a\x01\x02" + SINGLE["i"]})  # to the twin
    assert take(json_send(free), leaves, json_send(free)) == [0, 1, 0]
