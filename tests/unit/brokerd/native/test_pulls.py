"""Pulls in C: of a request is read what Python reads or nothing, and an answer is what Python makes, whatever the bytes are."""

from __future__ import annotations

import ctypes
import json
import struct
from array import array
from random import Random

import orjson
import pytest

from brokerd.native.memory import Pinned
from brokerd.native.wanted import (
    FILE,
    FILE_BEGIN,
    FILE_LENGTH,
    IS_SHORT,
    LATER,
    MESSAGES,
    NEXT_OFFSET,
    UNITS,
)
from brokerd.processors.pulling import asked
from brokerd.processors.pulling.asked import PullReader, asked_agrees, read_asked
from brokerd.processors.pulling.laid_out import AnswerLayout, LaidOut, Wanted, _choose, laid_out, layout_agrees
from brokerd.processors.pulling.standing import Given, Standing
from brokerd.processors.pulling.terms import MAX_BYTES
from brokerd.store.store_reads import Window
from brokerd.store.unit import BLANK_SIZE, BLANK_UNIT, UNIT, UNIT_BYTES, Unit
from remoting import codes, frame
from remoting.errors import ProtocolError
from remoting.frame import Command
from tests.support.client_bytes import encode_compact
from tests.support.native_library import native_library
from tests.unit.brokerd.native.test_reads import changed, stored
from tests.unit.brokerd.native.test_runs import scattered

_UNITS_AT = 32 + 24 + 512  # in `struct answer`
_NUMBERS = ("0", "7", "-1", "-3", "007", "+5", " 5", "1_0", "", "x", "9" * 18, "9" * 19, "1.5", "-")
_TEXTS = ("T", "größe", 'a"b\\c', "\n", "\u0001", "\U0001f600", "x" * 300, "*", "")
_NAMES = (
    "consumerGroup",
    "topic",
    "queueId",
    "maxMsgNums",
    "sysFlag",
    "subscription",
    "expressionType",
    "",
    "größe",
    "n",
)


def test_the_library_agrees() -> None:
    assert asked_agrees(native_library())
    assert layout_agrees(native_library())


def a_request(rng: Random) -> bytes:
    """A pull as some client may write it, or almost."""
    ext: dict[str, object] = {rng.choice(_NAMES): rng.choice(_TEXTS) for _ in range(rng.randrange(8))}
    for name in ("queueOffset", "commitOffset"):
        if rng.random() < 0.9:
            text = rng.choice(_NUMBERS[:4] if rng.random() < 0.7 else _NUMBERS)
            ext[name] = int(text) if text in _NUMBERS[:4] and rng.random() < 0.3 else text
    if rng.random() < 0.2:
        ext[rng.choice(_NAMES)] = rng.choice((None, True, 3, -4, 1.0))
    ext = dict(rng.sample(list(ext.items()), len(ext)))
    code = rng.choice((11, 11, 361, 310, 12))
    flag = rng.choice((0, 0, 0, 0, 1, 2))
    if rng.random() < 0.3:
        texts = {name: str(value) for name, value in ext.items()}
        return encode_compact(Command(code, rng.getrandbits(31), texts, b"body", flag))
    fields = {"code": code, "opaque": rng.choice((0, 5, -5, 1 << 40)), "flag": flag, "extFields": ext, "language": "GO"}
    fields = dict(rng.sample(list(fields.items()), len(fields)))
    header = orjson.dumps(fields, option=rng.choice((0, orjson.OPT_INDENT_2)))
    return struct.pack(">iI", 4 + len(header) + 4, len(header)) + header + b"body"


@pytest.mark.parametrize("seed", range(20))
def test_a_request_is_read_as_in_python(seed: int) -> None:
    rng, read = Random(seed), PullReader(native_library()).read
    taken = 0
    for _ in range(300):
        data = a_request(rng)
        ours = read_asked(data, 0)
        theirs = read(data, 0)
        assert theirs in (None, ours)
        taken += theirs is not None
        position = rng.randrange(40)
        moved = read(rng.randbytes(position) + data + b"more", position)
        assert moved == (None if theirs is None else theirs._replace(end=theirs.end + position))
        assert read(data[: rng.randrange(len(data))], 0) is None, "it is not there yet"
    assert taken > 30


@pytest.mark.parametrize("seed", range(20))
def test_damaged_requests_are_read_as_in_python_or_left(seed: int) -> None:
    rng, read = Random(seed), PullReader(native_library()).read
    taken = 0
    for _ in range(400):
        data = bytearray(a_request(rng))
        for _ in range(rng.choice((1, 1, 2, 5))):
            match rng.randrange(3):
                case 0:
                    data[rng.randrange(len(data))] = rng.choice((0, 0x22, 0x5C, 0x7B, 0x7D, 0x2C, 0x30, 0x80, 0xFF))
                case 1:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                case _:
                    at = rng.randrange(len(data))
                    del data[at : at + rng.randrange(1, 9)]
        theirs = read(bytes(data), 0)
        try:
            ours = read_asked(bytes(data), 0)
        except ProtocolError:
            ours = None
        assert theirs in (None, ours)
        taken += theirs is not None
    assert taken > 3


def recalled(reader: PullReader[bytes], data: bytes) -> bool:
    """Whether the request is taken: then it is recalled as it is read. It is known from then on."""
    asked, found = reader.read(data, 0), reader.recall(data, 0)
    if asked is None or found is None:
        assert asked is None
        assert found is None
        return False
    assert found[:4] == asked[:4]
    assert found[4] in (None, asked.key)
    reader.learn(asked.key, asked.key)
    return True


@pytest.mark.parametrize("seed", range(20))
def test_what_is_asked_again_is_recalled_as_it_is_read(seed: int) -> None:
    """With other numbers, or texts that are none, in all places; and damaged."""
    rng, reader = Random(seed), PullReader[bytes](native_library())
    first = [a_request(rng) for _ in range(60)]
    first += [frame.encode_request(11, rng.getrandbits(31), {"n": str(n), "queueOffset": "7"}) for n in range(70)]
    for _ in range(3):
        for data in rng.sample(first, len(first)):
            recalled(reader, data)
    taken = 0
    for _ in range(600):
        data = rng.choice(first)
        for _ in range(rng.randrange(3)):
            old = rng.choice((b'"opaque":', b'"queueOffset":"', b'"commitOffset":"', b'"queueOffset":', b'"n":"'))
            at = data.find(old) + len(old)
            if at >= len(old):
                end = at
                while data[end : end + 1].isdigit() or data[end : end + 1] == b"-":
                    end += 1
                text = rng.choice((*_NUMBERS, "1", "22", "0", "-0", "00", "-01", "1e3", '1"', "\\u0031")).encode()
                data = data[:at] + text + data[end:]
        header = data[8 : 8 + int.from_bytes(data[5:8])] if rng.random() < 0.1 else None
        if header is None and data[4] == 0:
            body_at = data.rfind(b"}") + 1
            data = struct.pack(">iI", len(data) - 4, body_at - 8) + data[8:]
        if rng.random() < 0.2:
            damaged = bytearray(data)
            damaged[rng.randrange(8, len(data))] = rng.choice((0x22, 0x2C, 0x7D, 0x30, 0x39, 0x2D, 0x20))
            data = bytes(damaged)
        taken += recalled(reader, data)
    assert taken > 100


def asked_of(number: int, opaque: int, offset: int, *, blank: str = "") -> bytes:
    """One of many that a client asks again and again, as some write JSON."""
    ext = {
        "topic": f"T{number % 7}",
        "queueId": str(number),
        "queueOffset": str(offset),
        "commitOffset": str(offset - 1),
    }
    header = json.dumps(
        {"code": 11, "flag": 0, "extFields": ext, "opaque": opaque}, separators=(",", f"{blank}:{blank}")
    ).encode()
    return struct.pack(">II", 4 + len(header), len(header)) + header


@pytest.mark.parametrize("blank", ["", " ", "\n  "])
def test_thousands_that_go_round_are_found_without_being_read(blank: str) -> None:
    reader, many = PullReader[bytes](native_library()), 4000
    for number in range(many):
        assert recalled(reader, asked_of(number, 1, 5, blank=blank))
    slots = set()
    for turn in range(3):
        read = 0
        for number in range(many):
            data = asked_of(number, number << turn, 1000 * turn + number, blank=blank)
            found = reader.recall(data, 0)
            read += reader._told[3] != 0  # the length of a key that was read
            assert found == read_asked(data, 0), "and what was found out is that of its key"
            if reader.alike is not None:
                slots.add(reader.alike[1])
        assert turn == 0 or read < many / 50, "few have no place where they are looked for"
    assert len(slots) > many * 0.98


def test_where_the_places_of_numbers_are_not_told_by_names_it_is_read_each_time() -> None:
    """As another one that is alike would not be found by them."""
    reader = PullReader[bytes](native_library())
    for name in ("queue\\u004fffset", "queueOffset"):
        for offset in (7, 8, 7):
            header = f'{{"code":11,"flag":0,"extFields":{{"topic":"T","{name}":"{offset}"}},"opaque":3}}'.encode()
            data = struct.pack(">II", 4 + len(header), len(header)) + header
            assert recalled(reader, data)
        assert (reader.alike is None) == (name != "queueOffset")


def test_what_is_known_is_forgotten_also_by_those_that_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "MAX_KNOWN", 3)
    monkeypatch.setattr(asked, "_ONE_OF", 1)
    reader = PullReader[bytes](native_library())
    for number in range(4):
        assert recalled(reader, asked_of(number, 1, 5))
    assert reader.known_count == 3
    for number, is_known in enumerate((False, True, True, True)):
        found = reader.recall(asked_of(number, 2, 6), 0)
        assert found is not None
        assert (found[4] is not None) == is_known


def test_numbers_that_are_no_texts_are_not_taken_for_those_of_another_request() -> None:
    reader = PullReader[str](native_library())

    def found(fields: str, opaque: str = "1") -> tuple[int, int, int]:
        header = f'{{"code":11,"opaque":{opaque},"flag":0,"extFields":{{{fields}}}}}'.encode()
        asked = reader.recall(struct.pack(">iI", 4 + len(header), len(header)) + header, 0)
        assert asked is not None
        return asked[1:4]

    for _ in range(2):
        assert found('"queueOffset":"5","commitOffset":12') == (1, 5, 12)
        assert found('"queueOffset":"6","commitOffset":12', "3") == (3, 6, 12)
        assert found('"queueOffset":7,"commitOffset":"8"') == (1, 7, 8)
        assert found('"queueOffset":"9"', "-4") == (-4, 9, -1)
        assert found('"queueOffset":"\\u0031","commitOffset":"2"') == (1, 1, 2)
        assert found('"queueOffset":"007","commitOffset":"-1"') == (1, 7, -1)


def test_what_differs_in_nothing_but_its_offsets_has_one_key_and_nothing_else_has() -> None:
    read = PullReader(native_library()).read
    ext = {"consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "1"}

    def key(code: int = codes.PULL_MESSAGE, opaque: int = 1, **changes: str) -> bytes:
        asked = read(frame.encode_request(code, opaque, ext | changes), 0)
        assert asked is not None
        return asked.key

    assert key() == key(opaque=9, queueOffset="7", commitOffset="3")
    others = [
        key(),
        key(codes.LITE_PULL_MESSAGE),
        key(topic="u"),
        key(topic="t\0"),
        key(queueId="1"),
        key(more=""),
        key(more="1"),
    ]
    assert len(set(others)) == len(others)


def test_what_is_too_long_or_is_there_twice_is_left() -> None:
    read = PullReader(native_library()).read
    ext = {"topic": "t", "queueOffset": "1"}
    assert read(frame.encode_request(11, 1, ext | {"n": "x" * 4000}), 0) is not None
    assert read(frame.encode_request(11, 1, ext | {"n": "x" * 4096}), 0) is None
    assert read(frame.encode_request(11, 1, ext | {"n": '"' * 9000}), 0) is None
    assert read(frame.encode_request(11, 1, ext | {str(number): "" for number in range(30)}), 0) is not None
    assert read(frame.encode_request(11, 1, ext | {str(number): "" for number in range(31)}), 0) is None
    for more, is_left in (
        (b'"n":""', False),
        (b'"queueOffset":"2"', True),
        (b'"n":"1","n":""', True),
        (b'"n":null', True),
    ):
        header = b'{"code":11,"opaque":1,"flag":0,"extFields":{"queueOffset":"1",%s}}' % more
        assert (read(struct.pack(">iI", 4 + len(header), len(header)) + header, 0) is None) == is_left


def both(window: tuple[int, int, bytes, bytes, int], wanted: Wanted, tags: array[int] | None) -> LaidOut | None:
    """What C makes of it, which Python makes, too."""
    low, high, units, log, begin = window
    ours = laid_out(Window(low, high, units, memoryview(log), begin), wanted, tags)
    made = _layout().lay_out(Window(low, high, units, memoryview(log), begin), wanted, tags)
    assert made == ours
    return made


def _layout() -> AnswerLayout:
    return AnswerLayout(native_library())


def some_wanted(rng: Random, total: int) -> Wanted:
    most = rng.choice((MAX_BYTES, total, total - 1, rng.randrange(1, total + 1)))
    numbers = [rng.choice((0, 1, 7, rng.getrandbits(40), (1 << 62) + 1)) for _ in range(4)]
    return Wanted(
        *(
            rng.getrandbits(40),
            rng.choice((32, 8, 3, 1)),
            most,
            *numbers,
            rng.choice((0, rng.getrandbits(45), 1 << 62)),
        ),
        rng.choice((0, 2)),
    )


@pytest.mark.parametrize("seed", range(20))
def test_both_make_the_same_answers(seed: int) -> None:
    rng = Random(seed)
    made = left = nothing = 0
    for _ in range(60):
        content, units = stored(rng, rng.choice((1, 2, 3, 8)))
        for damage in (False, False, True):
            told: list[Unit] = units
            if damage:
                damaged, told = changed(rng, content, units)
                content = damaged.ljust(len(content), b"\0")
            file = scattered(rng, content, units)
            file = file[: rng.choice((len(file), len(file), rng.randrange(len(file) + 1)))]
            encoded = b"".join(rng.choice((b"", b"", b"", BLANK_UNIT)) + UNIT.pack(*unit) for unit in told)
            tags = rng.choice((None, array("q", sorted({unit[2] for unit in told if rng.random() < 0.6}))))
            begin = units[0][0] + rng.choice((0, 0, 0, 1, -1))
            found = both(
                (rng.getrandbits(40), rng.getrandbits(40), encoded, file, begin), some_wanted(rng, len(content)), tags
            )
            left += found is None
            made += found is not None and found.messages > 0
            nothing += found is not None and not found.messages
    assert made > 20
    assert left > 10
    assert nothing > 3


@pytest.mark.parametrize("seed", range(10))
def test_who_knows_a_part_of_the_queue_answers_as_who_knows_all_of_it_or_says_so(seed: int) -> None:
    """Then what is behind that part belongs to the answer; or all that is wanted is in a later file."""
    rng, answer = Random(seed), bytearray(4096)
    answer_at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(answer)))
    prepare = native_library().function("native_pull_prepared_seen", ctypes.c_int64, *(ctypes.c_void_p,) * 2)
    seen = {"same": 0, "short": 0, "at the end": 0, "later": 0}
    for _ in range(300):
        _, units = stored(rng, rng.choice((1, 3, 8)))
        encoded = b"".join(rng.choice((b"", b"", BLANK_UNIT)) + UNIT.pack(*unit) for unit in units)
        there, codes_of = len(encoded) // UNIT_BYTES, sorted({unit[2] for unit in units})
        tags = rng.choice((None, array("q", rng.sample(codes_of, rng.randrange(len(codes_of) + 1)))))
        tags = None if tags is None else array("q", sorted(tags))
        most_units, known = rng.randrange(1, 12), rng.randrange(there + 1)
        file = rng.choice(((units[0][0], sum(units[-1][:2])), (units[0][0], units[-1][0]), (0, units[0][0])))
        wanted = Wanted(0, rng.choice((1, 3, 32)), rng.choice((MAX_BYTES, units[0][1])), 1, 0, 0, 0, 0, 0)
        all_of_it = encoded[: UNIT_BYTES * most_units]
        chosen, next_offset = _choose(all_of_it, file[1], wanted, tags)

        standing = Standing()
        numbers = standing.area.numbers
        standing.ask(most_units, wanted.max_count, wanted.max_bytes, tags, 0)
        standing.see(0, known, 0, there)
        numbers[FILE], numbers[FILE_BEGIN], numbers[FILE_LENGTH] = 0, file[0], file[1] - file[0]
        with Pinned(encoded) as numbers[UNITS]:
            length: int = prepare(standing.area.pointer, answer_at)
        first_wanted = next(
            (place for place, size, code in UNIT.iter_unpack(encoded[: UNIT_BYTES * min(known, most_units)])
             if size != BLANK_SIZE and (tags is None or code in tags)),
            -1,
        )  # fmt: skip
        if first_wanted >= file[1]:
            assert (length, numbers[LATER]) == (-1, first_wanted)
            seen["later"] += 1
        elif numbers[IS_SHORT] and known < there:
            assert length == -1
            assert known < min(next_offset + (len(chosen) < wanted.max_count), most_units)
            seen["short"] += 1
        else:
            found = [*UNIT.iter_unpack(answer[_UNITS_AT : _UNITS_AT + UNIT_BYTES * numbers[MESSAGES]])]
            assert (found, numbers[NEXT_OFFSET]) == (chosen, next_offset)
            assert bool(numbers[IS_SHORT]) == (
                known == there < most_units and next_offset == there and len(chosen) < wanted.max_count
            )
            seen["at the end" if numbers[IS_SHORT] else "same"] += 1
    assert min(seen.values()) > 5, seen


def test_an_answer_ends_where_its_file_does() -> None:
    """What goes on in the next file is not left to others; what is in no file that is seen is."""
    content, units = stored(Random(4), 8)
    content = scattered(Random(5), content, units)
    encoded, begin = b"".join(UNIT.pack(*unit) for unit in units), units[0][0]
    for count in range(1, 9):
        end = sum(units[count - 1][:2]) - begin
        found = both((0, 8, encoded, content[:end], begin), Wanted(0, 32, MAX_BYTES, 1, 0, 0, 0, 0, 0), None)
        assert found is not None
        assert found.given == Given(count, sum(size for _, size, _ in units[:count]), count, 0, 8)
        cut = both((0, 8, encoded, content[: end - 1], begin), Wanted(0, 32, MAX_BYTES, 1, 0, 0, 0, 0, 0), None)
        assert cut is None, "a record goes on behind the end"
    one = array("q", (units[7][2],))
    assert one[0] not in [code for _, _, code in units[:7]]
    first_three = content[: units[3][0] - begin]
    assert both((0, 8, encoded, first_three, begin), Wanted(0, 32, MAX_BYTES, 1, 0, 0, 0, 0, 0), one) is None


def test_hostile_units_are_left() -> None:
    content, [(offset, size, code)] = stored(Random(1), 1)
    wanted = Wanted(0, 32, MAX_BYTES, 1, 0, 0, 0, 0, 0)
    for unit in (
        *((place, size, code) for place in (offset + 1, offset - 1, -1, -(1 << 63), (1 << 63) - 1)),
        *((offset, other, code) for other in (-1, 0, 90, size - 1, size + 1, -(1 << 31), (1 << 31) - 2)),
    ):
        assert both((0, 1, UNIT.pack(*unit), content, offset), wanted, None) is None
        assert both((0, 1, UNIT.pack(*unit), b"", offset), wanted, None) is None
        two = UNIT.pack(offset, size, code) + UNIT.pack(*unit)
        both((0, 2, two, content, offset), wanted, None)
    none = both((0, 1, b"", content, offset), wanted, None)
    assert none is not None
    assert none.given == Given(0, 0, 0, 0, 1)


def test_more_than_there_is_room_for_is_left() -> None:
    content, units = stored(Random(2), 3)
    encoded = b"".join(UNIT.pack(*unit) for unit in units)
    file = scattered(Random(2), content, units)
    answer = both((0, 3, encoded * 20, file, units[0][0]), Wanted(0, 64, 1 << 30, 1, 0, 0, 0, 0, 0), None)
    assert answer is not None
    assert answer.messages == 60
    for count in (0, -1, 65):
        window = Window(0, 3, encoded, memoryview(file), units[0][0])
        assert _layout().lay_out(window, Wanted(0, count, 1 << 30, 1, 0, 0, 0, 0, 0), None) is None
    record = units[0][0], MAX_BYTES + 1, 0
    assert (
        both((0, 1, UNIT.pack(*record), bytes(MAX_BYTES * 2), units[0][0]), Wanted(0, 1, 1, 1, 0, 0, 0, 0, 0), None)
        is None
    )
