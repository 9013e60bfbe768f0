"""What the library read of sends when it looked who signed them, and what it read of the header before: from these a send is laid
out as if it had been read for itself, or it is read again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.sending import native_signed
from brokerd.sending.boundary import SendKernel, Source
from brokerd.sending.kernel import Kernel
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.native_signed import _READING_BYTES, SignedSends
from brokerd.sending.readings import Reading
from remoting.access.signature import Credentials
from remoting.errors import ProtocolError
from remoting.frame import Command, decode_frames, encode_request
from tests.support.client_bytes import encode_compact
from tests.support.native_library import native_library
from tests.unit.brokerd.sending.kernel_sends import BATCH, ORDINARY, OTHER, SINGLE, framed, json_send
from tests.unit.brokerd.sending.test_native_kernel import (
    HOST,
    PEER,
    TOPICS,
    check_same,
    kernels,
    new_run,
    outcome,
    rules,
)

SIGNER = Credentials("a user", b"secret")
MOST = 128


def sign(data: bytes) -> bytes:
    """The frame as JSON, signed by somebody; what cannot be decoded stays as it is."""
    requests: list[Command] = []
    decode_frames(data, requests)
    [each] = requests
    return encode_request(each.code, each.opaque, SIGNER.sign(each.ext, each.body), each.body)


def _is_one(data: bytes) -> bool:
    requests: list[Command] = []
    try:
        return decode_frames(data, requests) == len(data) and len(requests) == 1
    except ProtocolError:
        return False


SIGNED = [sign(data) for data in (*ORDINARY.values(), *OTHER.values()) if _is_one(data)]


def check_read(buffer: bytes, *, most: int = MOST, at: int = 0, sends: SignedSends | None = None, **run_of: Any) -> int:
    """The kernel lays out the same with what was read as without, and as its twin; of how many frames there was a reading."""
    sends = sends or SignedSends(native_library())
    found = sends.read(buffer, most)
    reading = sends.reading(buffer, found)
    assert reading.of(buffer)[1] == found
    source = Source(buffer, at, PEER, most)
    wanted = _laid_out(kernels()[0], source, **run_of)
    for known in (None, reading):
        assert _laid_out(kernels()[1], source._replace(reading=known), **run_of) == wanted
    return found


def _laid_out(kernel: SendKernel, source: Source, **run_of: Any) -> Mapping[str, Any]:
    run = new_run(**run_of)
    [taken] = kernel.take(run, [source])
    return outcome(run, taken)


@pytest.mark.parametrize("at_once", [1, 3])
def test_all_that_is_ordinary(at_once: int) -> None:
    for data in SIGNED:
        check_read(data * at_once)


frames = st.lists(st.sampled_from([*SIGNED, *ORDINARY.values(), *OTHER.values()] + [SIGNED[0]] * 40), max_size=12)


@settings(deadline=None)
@given(frames, st.sampled_from([0, 1, 9]), st.sampled_from([1, 2, 5, MOST]), st.sampled_from([300, 3000, 1 << 20]))
def test_any_frames_one_behind_the_other(each: list[bytes], cut: int, most: int, room: int) -> None:
    check_read(b"".join(each)[: -cut or None], most=most, room=room)


def test_from_any_frame_on() -> None:
    """What was read of what is before the position is passed over, and a place between two frames is none that was read."""
    data = SIGNED[0] * 2 + sign(ORDINARY["batch"]) + SIGNED[1]
    for at in itertools.accumulate([len(SIGNED[0])] * 2, initial=0):
        check_read(data, at=at)
        check_read(data, at=at + 1)
        check_read(data, at=at, most=1)


def records(buffer: bytes, reading: Reading | None, **kernel_of: Any) -> bytes:
    """What is laid out of the buffer by a kernel that nothing was told before."""
    native = NativeKernel(native_library(), HOST, rules(), **kernel_of)
    native.topics_changed(TOPICS)
    laid_out: bytes = _laid_out(native, Source(buffer, 0, PEER, MOST, reading))["records"]
    return laid_out


def test_of_other_bytes_it_says_nothing() -> None:
    """Neither of those in another buffer, nor when other readings were written over it."""
    sends = SignedSends(native_library())
    buffer, other = sign(json_send(SINGLE, b"one")) * 3, sign(json_send(SINGLE, b"two")) * 3
    assert len(buffer) == len(other)
    assert sends.read(buffer, MOST) == 3
    reading = sends.reading(buffer, 3)
    wanted = records(other, None)
    assert records(other, reading) == wanted
    equal = bytes(bytearray(buffer))
    assert reading.of(equal) == (0, 0)
    assert reading.of(buffer)[1] == 3
    sends.forget()
    assert reading.of(buffer)[1] == 3, "nothing was read since"
    assert sends.read(other, MOST) == 3
    assert reading.of(buffer) == (0, 0)
    assert records(buffer, reading) == records(buffer, None)


def test_a_header_is_compared_with_the_one_that_was_read_before_it() -> None:
    """Between two that are read stands one of which there is a reading."""
    again = {"j": "5"}
    one = sign(json_send({name: value for name, value in SINGLE.items() if name not in again}))
    other = sign(json_send({**SINGLE, **again}))
    buffer = one + other + one + one
    sends = SignedSends(native_library())
    assert sends.read(buffer, MOST) == 4
    first, _ = sends.reading(buffer, 4).of(buffer)
    assert records(buffer, Reading(buffer, first + _READING_BYTES, 1, [0], sends)) == records(buffer, None)


def test_readings_of_many_buffers_stay_until_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_signed, "_READINGS", 300)
    sends = SignedSends(native_library())
    readings = []
    for number in range(40):
        buffer = sign(json_send({**SINGLE, "i": f"UNIQ_KEY\x01{number}\x02"}, b"%02d" % number)) * 10
        assert sends.read(buffer, 128) == 10
        readings.append((buffer, sends.reading(buffer, 10)))
    kept = [number for number, (buffer, reading) in enumerate(readings) if reading.of(buffer)[1]]
    assert kept == list(range(kept[0], 40))
    assert kept[0] > 0
    for buffer, reading in readings:
        assert records(buffer, reading) == records(buffer, None)


def test_texts_of_many_buffers_stay_until_there_is_no_room() -> None:
    """Escaped texts that fill the scratch."""
    sends = SignedSends(native_library())
    readings = []
    for number in range(40):
        buffer = sign(json_send({**SINGLE, "i": f"UNIQ_KEY\x01{number}\x02a\x01{str(number) * 9000}\x02"})) * 2
        assert sends.read(buffer, 128) == 2
        readings.append((buffer, sends.reading(buffer, 2)))
    there = [bool(reading.of(buffer)[1]) for buffer, reading in readings]
    assert there[-1]
    assert not there[0]
    for buffer, reading in readings:
        assert records(buffer, reading) == records(buffer, None)


def test_frames_that_are_too_long_for_the_kernel_are_none_that_were_read() -> None:
    buffer = sign(json_send(SINGLE, b"x" * 900)) * 2
    sends = SignedSends(native_library())
    assert sends.read(buffer, MOST) == 2
    reading = sends.reading(buffer, 2)
    assert records(buffer, reading) == records(buffer, None) != b""
    assert records(buffer, reading, max_frame_bytes=800) == records(buffer, None, max_frame_bytes=800) == b""


# Headers of sends that are like one another, and what their texts may be: also what ends a text early, or is none
_TEXTS = ("", "T", "U", "0", "1", "-1", "3", "é", "\\u0041", "\\u0001", "12", "Unknown")
_ODD = ('1","b":"U', '"', "\\", "\\u12", "\\ud800", "\t", '1"},"flag":0,"extFields":{"b":"T')
_MANY = ",".join(f'"n{each}":"%"' for each in range(35))
_SKELETONS = (
    '{"code":310,"extFields":{"a":"g","b":"T","e":"%","f":"0","g":"17","h":"0","i":"%","z":"%"},"flag":0,"opaque":#,"version":4}',
    '{"opaque":#,"extFields":{"b":"%","e":"%","f":"0","g":"1700000000000","h":"%","i":"%","m":"%"},"code":310,"flag":0}',
    '{"opaque": # ,"code":10,"flag":0,"extFields":{"topic":"%","queueId":"%","sysFlag":0,"bornTimestamp":17,"flag":"%","y":"%"}}',
    '{"code":310,"flag":0,"opaque":#,"extFields":{"b":"T","e":"1","f":"0","g":"17","h":"0","z":{"b":"U"},"i":"%"}}',
    '{"code":310,"flag":0,"opaque":#,"extFields":{'
    + _MANY
    + ',"b":"T","e":"%","f":"0","g":"17","h":"0","i":"a\\u0001b"}}',
)
_OPAQUES = ("0", "7", "-3", " 12", "007", "1.5", "", "true", "9" * 30, '"7"', "1,2")


@st.composite
def headers_alike(draw: st.DrawFn) -> list[bytes]:
    """Headers of one connection: mostly of one skeleton, with a text or a number changed here and there, and some damaged."""
    skeletons = draw(st.lists(st.sampled_from(_SKELETONS), min_size=1, max_size=2))
    headers = []
    for _ in range(draw(st.integers(2, 6))):
        text = draw(st.sampled_from(skeletons))
        for _ in range(text.count("%")):
            usual = st.sampled_from(_TEXTS)
            text = text.replace("%", draw(st.one_of(usual, usual, usual, st.sampled_from(_ODD))), 1)
        text = text.replace("#", draw(st.one_of(st.sampled_from(_OPAQUES[:4]), st.sampled_from(_OPAQUES))))
        data = bytearray(text.encode("utf-8", "surrogatepass"))
        for _ in range(draw(st.sampled_from((0, 0, 0, 1)))):
            at = draw(st.integers(0, len(data) - 1))
            data[at : at + draw(st.integers(0, 2))] = draw(
                st.sampled_from((b"", b" ", b'"', b",", b"\\", b"\xff", b"x"))
            )
        headers.append(bytes(data))
    return headers


PAIR = cache(kernels)  # which goes on where it was: both remember the same


def check_alike(pair: tuple[Kernel, NativeKernel], headers: Sequence[bytes]) -> None:
    """Both kernels lay out the same of sends with these headers."""
    source = Source(b"".join(framed(each, b"body") for each in headers), 0, PEER, MOST)
    wanted, found = (_laid_out(kernel, source) for kernel in pair)
    assert found == wanted


@settings(deadline=None, max_examples=300)
@given(headers_alike())
def test_a_header_is_laid_out_as_if_no_other_had_come_before(headers: Sequence[bytes]) -> None:
    check_alike(PAIR(), headers)


@pytest.mark.parametrize("skeleton", _SKELETONS)
def test_only_what_is_a_text_differs_in_sends_that_are_alike(skeleton: str) -> None:
    """Each byte of the second header changed to each of some others."""
    first = (
        skeleton.replace("%", "1")
        .replace('"b":"1"', '"b":"T"')
        .replace('"topic":"1"', '"topic":"T"')
        .replace("#", "12")
    )
    data = first.encode()
    for at in range(len(data)):
        for other in b'"\\,:{} x0\x1f\xff':
            changed = data[:at] + bytes([other]) + data[at + 1 :]
            check_alike(PAIR(), (data, changed, data))


def test_texts_with_escapes_lie_elsewhere_in_each_header() -> None:
    skeleton = (
        '{"code":310,"flag":0,"opaque":1,"extFields":{"i":"%","b":"\\u0054","e":"1","f":"0","g":"17","h":"0","z":"#"}}'
    )
    texts = ("UNIQ_KEY\\u0001a\\u0002", "UNIQ_KEY\\u0001and longer\\u0002", "UNIQ_KEY\\u0001a\\u0002")
    headers = [skeleton.replace("%", text).replace("#", rest).encode() for text in texts for rest in ("", "\\u0041x")]
    check_alike(PAIR(), headers)
    check_alike(PAIR(), headers[::-1])


def test_fields_that_are_too_many_to_be_compared_one_by_one() -> None:
    """The texts of the last of them are not where the header before had them."""
    headers = [
        _SKELETONS[-1].replace("%", text).replace("#", "1").encode() for text in ("1", "\\u0031", "1", "\\u0031", "1")
    ]
    check_alike(PAIR(), headers)
    check_alike(PAIR(), headers[1:2] * 3)
    check_alike(
        PAIR(), [headers[1], headers[1].replace(b"\\u0031", b"yx" + b"\\u0001x" * 20, 1), headers[1], headers[1]]
    )
    first, second = (
        _SKELETONS[-1].replace("%", text, 1).replace("%", "1").replace("#", "1").encode()
        for text in ("\\u0031", "\\u0031c\\u0001d")  # of the second, a part would pass for the last text of the first
    )
    check_alike(PAIR(), [first, second, first, first])


def test_batches_and_compact_headers_between_those_that_are_alike() -> None:
    batch, compact = ORDINARY["batch"], ORDINARY["compact"]
    single = json_send(SINGLE)
    check_same(single * 2 + batch * 2 + single + compact + single * 2 + json_send(BATCH, b"x", code=320) + single)
    requests: list[Command] = []
    decode_frames(single, requests)
    requests[0].ext = SIGNER.sign(requests[0].ext, requests[0].body)
    signed = encode_compact(requests[0])
    check_read(signed * 2 + SIGNED[0] * 2 + signed)
