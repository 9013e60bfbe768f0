"""The kernel in C against its twin in Python: whatever the bytes, the same records, units, answers, numbers and stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brokerd.delay.levels import DEFAULT_DELAYS
from brokerd.metadata.configs import TopicConfig
from brokerd.native.building import FLAGS, compile_to, find_compiler, source_dir
from brokerd.native.library import Library
from brokerd.sending import native_kernel
from brokerd.sending.boundary import SendKernel, Source, Stop, Taken
from brokerd.sending.halves import LaidOutHalves
from brokerd.sending.kernel import Kernel
from brokerd.sending.native_check import send_agrees
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.progress import Progress
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
from tests.support.kernels import take_one
from tests.support.native_library import native_library
from tests.unit.brokerd.sending.kernel_sends import (
    BATCH,
    FIELDS,
    NOW_MS,
    ORDINARY,
    OTHER,
    SINGLE,
    framed,
    item,
    json_header,
    json_send,
)

HOST, PEER = pack_host("10.0.0.2", 10911), pack_host("10.0.0.1", 40000)
TOPICS = {
    name: TopicConfig(name, queues, queues, 6)
    for name, queues in {"T": 4, "U": 1, "Tt": 2, "Ta": 9, "L" * 127: 1, "%DLQ%g": 1}.items()
}
TERMS = Terms(Clock(NOW_MS, NOW_MS - 5, 172_800_000), 3_456_000_000, bytes(range(32)), "broker-größe")
NEXT = {("T", 1): 5, ("rmq_sys_wheel_timer", 0): 7, ("U", 0): (1 << 40) + 1, ("Ta", 8): 99}


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
        for topic, queue_id, queue_offset, position, size, code, now_ms, count in run.all_entries()
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
            outcome(run, take_one(kernel, run, data, at, peer, most)) for kernel, run in zip(pair, runs, strict=True)
        )
        assert found == wanted
    records = found["records"]
    for begin, end in pairwise([*records_in(records), len(records)]):
        assert is_intact(records[begin:end])
    return found


@pytest.mark.parametrize("kind", ORDINARY)
def test_the_library_takes_what_is_ordinary_and_leaves_nothing_of_it(kind: str) -> None:
    data = ORDINARY[kind] * 3
    check_same(data)
    _, native = kernels()
    progress = Progress([Source(data, 0, PEER, 9)])
    run = new_run()
    stop = native.lay_out(run, progress)
    if (
        "moment" in kind or "seems special" in kind or "half" in kind
    ):  # it has to ask first by what they wait, or for room
        assert (progress.left, stop) == (9, native_kernel._ROOM)
        stop = native.lay_out(run, progress)
    assert (progress.left, stop) == (9 - 3, 0)
    assert progress.found[0].position == len(data)


RECORDED = sorted((Path(__file__).parents[3] / "golden" / "sends").iterdir())


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_the_library_takes_all_that_the_clients_of_the_original_wrote(path: Path) -> None:
    data = path.read_bytes()
    commands: list[Command] = []
    decode_frames(data, commands)
    topics = {each.ext.get("b") or each.ext["topic"]: 4 for each in commands}
    _, native = kernels()
    native.topics_changed({name: TopicConfig(name, queues, queues, 6) for name, queues in topics.items()})
    progress, run = Progress([Source(data, 0, PEER, 1000)]), new_run()
    stop = native.lay_out(run, progress)
    if stop == native_kernel._ROOM:  # a transaction begins: it asked for room
        stop = native.lay_out(run, progress)
    assert (1000 - progress.left, stop, progress.found[0].position) == (len(commands), 0, len(data))
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


def check_sources(parts: Sequence[tuple[bytes, int]], **run_of: Any) -> None:
    """Both kernels take the same of what several peers sent, each from its second frame on, in one call as in one for each."""
    first = ORDINARY["single"]
    sources = [
        Source(first + data, len(first), pack_host("fe80::1", n) if n % 3 == 2 else pack_host("10.0.0.1", n), most)
        for n, (data, most) in enumerate(parts)
    ]
    found = []
    for together in (True, False):
        for kernel in kernels():
            take = kernel.take if together else partial(take_each, kernel)
            for _ in range(2):  # what was learned from the first time changes nothing but the names
                run = new_run(**run_of)
                found.append([outcome(run, each) for each in take(run, sources)])
    assert found[0::2] == [found[0]] * 4
    assert found[1::2] == [found[1]] * 4


def take_each(kernel: SendKernel, run: Run, sources: Sequence[Source]) -> list[Taken]:
    found: list[Taken] = []
    for source in sources:
        found += kernel.take(run, [source])
        if found[-1].stop is not Stop.END:
            break
    return found


parts_of_sources = st.lists(
    st.tuples(
        st.lists(st.sampled_from([*ORDINARY.values(), *OTHER.values()] + [ORDINARY["single"]] * 40), max_size=4),
        st.sampled_from([0, 9]),
        st.sampled_from([1, 2, 3, 128]),
    ),
    min_size=1,
    max_size=9,
)


@pytest.mark.parametrize("at_once", [1, 2, 128])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts_of_sources, st.sampled_from([0, 700, 3000, 1 << 20]))
def test_what_several_peers_sent(
    monkeypatch: pytest.MonkeyPatch, at_once: int, parts: list[tuple[list[bytes], int, int]], room: int
) -> None:
    """Frames of any kind, the last of them cut off in some, few or many of them to be taken."""
    monkeypatch.setattr(native_kernel, "_SOURCES", at_once)
    sent = [(b"".join(frames)[: -cut or None], most) for frames, cut, most in parts]
    check_sources(sent, room=room)


def check_together(kernel: NativeKernel, twin: Kernel, parts: Sequence[bytes], most: int, **run_of: Any) -> int:
    """What C takes at once of several peers, and then the rest, is what the twin takes; of how many peers it was all of it."""
    peers = [pack_host("fe80::1", n) if n % 3 == 2 else pack_host("10.0.0.1", n) for n in range(len(parts))]
    ours, theirs = new_run(**run_of), new_run(**run_of)
    together = kernel.take_together(ours, parts, peers, most)
    found = list(together.apart())
    done = together.done
    begun = found[done:]
    assert len(begun) <= 1
    rest = [Source(data, 0, peer, most) for data, peer in zip(parts[done:], peers[done:], strict=True)]
    for taken in begun:
        rest[0] = Source(rest[0].buffer, taken.position, rest[0].peer, most - together.frames[done])
    behind = kernel.take(ours, rest) if rest else []
    for taken in begun:
        behind[0].answers[:0] = taken.answers
        behind[0].opaques[:0] = taken.opaques
        if taken.early is not None:
            later, behind[0].early = behind[0].early, taken.early
            if later is not None:
                behind[0].add_early(later.answers, later.opaques)
    wanted = twin.take(theirs, [Source(data, 0, peer, most) for data, peer in zip(parts, peers, strict=True)])
    assert [outcome(ours, each) for each in (*found[:done], *behind)] == [outcome(theirs, each) for each in wanted]
    return done


@pytest.mark.parametrize("at_once", [1, 2, 128])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts_of_sources, st.sampled_from([1, 2, 128]), st.sampled_from([0, 700, 3000, 1 << 20]))
def test_what_several_peers_sent_is_taken_together(
    monkeypatch: pytest.MonkeyPatch, at_once: int, parts: list[tuple[list[bytes], int, int]], most: int, room: int
) -> None:
    monkeypatch.setattr(native_kernel, "_SOURCES", at_once)
    sent = [b"".join(frames)[: -cut or None] for frames, cut, _ in parts]
    twin, native = kernels()
    for _ in range(2):
        check_together(native, twin, sent, most, room=room)


def test_what_is_ordinary_is_taken_at_once() -> None:
    twin, native = kernels()
    parts = [ORDINARY["single"] * (1 + n % 3) + ORDINARY["single"][: n % 2] for n in range(100)]
    assert check_together(native, twin, parts, 128) == 100


def test_sources_that_have_no_room_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for area, least in (("_RECORDS_BYTES", 3000), ("_ANSWERS_BYTES", 1500), ("_UNITS", 3), ("_FRAMES", 6)):
        with monkeypatch.context() as patched:
            patched.setattr(native_kernel, area, least)
            check_sources([(ORDINARY[kind] * 2, 128) for kind in ORDINARY])


def test_numbers_that_others_took_are_seen() -> None:
    """Guesses of the last call are wrong when somebody else appended, a run was dropped, or a topic was made again."""
    _, native = kernels()
    data = ORDINARY["single"] * 2 + json_send({**SINGLE, "b": "U", "e": "0"})
    for numbers in ({}, {("T", 1): 7}, {("T", 1): 9, ("U", 0): 1}, {}):
        run = Run(0, 1 << 30, 1 << 20, NOW_MS, TakenOffsets(numbers), True)
        take_one(native, run, data, 0, PEER, 9)
        first, second = numbers.get(("T", 1), 0), numbers.get(("U", 0), 0)
        assert [(entry[0], entry[2], entry[7]) for entry in run.all_entries()] == [
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
            outcome(run, take_one(kernel, run, data, 0, PEER, 9)) for kernel, run in zip(pair, runs, strict=True)
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
    take: Callable[..., Taken] = Kernel.take_one

    def other(self: Kernel, run: Run, *rest: Any) -> Taken:
        taken = take(self, run, *rest)
        run.records.append(b"?")
        return taken

    monkeypatch.setattr(Kernel, "take_one", other)
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
        first = take_one(kernel, run, data, 0, PEER, 1)
        taken.append(outcome(run, take_one(kernel, run, data, first.position, PEER, 9)))
    assert taken[0] == taken[1]
    assert len(taken[0]["halves"]) <= max(room[0], 0)


def test_room_for_transactions_is_asked_for_when_one_begins() -> None:
    asked = 0

    class Counted(Transactions):
        def room(self) -> HalfRoom:
            nonlocal asked
            asked += 1
            return super().room()

    native = NativeKernel(native_library(), HOST, rules(Counted()))
    native.topics_changed(TOPICS)
    counts = []
    for kind in ("single", "half", "half", "half", "single", "single", "half"):
        before, run = asked, new_run()
        taken = take_one(native, run, ORDINARY[kind] * 2, 0, PEER, 9)
        assert taken.position == 2 * len(ORDINARY[kind])
        assert run.message_count == 2
        counts.append(asked - before)
    assert counts == [0, 1, 1, 1, 1, 0, 1]


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
        before = run.entry_count
        assert take_one(native, run, b"".join(frames), 0, PEER, 1000).stop is Stop.END
        return [queue_id for _, queue_id, *_ in list(run.all_entries())[before:]]

    assert take(json_send(free), ordinary, json_send(free)) == [1, 1, 2]
    native.take_decoded(run, [Command(310, 1, free, b"b")], 0, PEER)
    assert list(run.all_entries())[-1][1] == 3
    assert take(json_send(free), json_send(free)) == [0, 1]
    assert take(json_send({**free, "b": "Ta"}), json_send(free)) == [1, 2]
    native.topics_changed({"T": TopicConfig("T", 2, 2, 6), "Ta": None})
    assert take(json_send(free), json_send(free), json_send(free)) == [1, 0, 1]
    leaves = json_send({**free, "i": "a\x01\x02" + SINGLE["i"]})  # to the twin
    assert take(json_send(free), leaves, json_send(free)) == [0, 1, 0]
