"""The codes of timers' entries are in C what they are in Python, whatever the properties are; nothing beside is looked at."""

from __future__ import annotations

import ctypes
from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.timers.codes import TIMER_RULE, timer_code
from brokerd.timers.native_codes import codes_agree
from tests.support.native_library import native_library
from tests.support.page_end import PageEnd

NAMES = (
    *(
        b"TIMER_DUE_MS",
        b"TIMER_LEG_MS",
        b"TIMER_OUT_MS",
        b"TIMER_PLACE",
        b"TIMER_DEL_UNIQKEY",
        b"TIMER_DEQUEUE_MS",
        b"TIMER_DUE_M",
        b"T",
        b"",
    ),
    *(b"xTIMER_DUE_MS", b"TIMER_DUE_MSS", b"UNIQ_KEY"),
)
VALUES = (
    *(
        b"0",
        b"7",
        b"0099",
        b"1700000000123",
        b"9999999999999999",
        b"99999999999999999",
        b"4503599627370497",
        b"-1",
        b"1.5",
    ),
    *(b"x", b"", b"5\x01", b"\x01", b"\xd9\xa3", b"\xff", b"5 "),
)
SEPARATORS = (b"\x02", b"\x02", b"\x02", b"\x02", b"\x02\x02", b"", b"\x01")


def properties_of(rng: Random) -> bytes:
    pieces = [
        rng.choice(NAMES) + rng.choice((b"\x01",) * 9 + (b"",)) + rng.choice(VALUES) + rng.choice(SEPARATORS)
        for _ in range(rng.choice((0, 1, 1, 2, 3, 6)))
    ]
    encoded = b"".join(pieces)
    return encoded[: rng.randrange(len(encoded))] if encoded and rng.random() < 0.2 else encoded


@pytest.mark.parametrize("seed", range(6))
def test_both_make_the_same_codes(seed: int) -> None:
    """The properties end where a page ends behind which nothing may be read: who does ends the process."""
    rng, page, made = Random(seed), PageEnd(), set()
    call = native_library().function(
        TIMER_RULE.native_name, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )
    for _ in range(1500):
        properties, stamp = properties_of(rng), rng.choice((0, -5, 1_700_000_000_000, 1 << 53, (1 << 63) - 1))
        wanted = timer_code(properties, stamp)
        assert call(page.put(properties), len(properties), stamp) == wanted, properties
        made.add(wanted)
    assert len(made) > 20


def test_the_check_at_load_finds_a_library_that_makes_others(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert codes_agree(library)
    monkeypatch.setattr(Library, "function", lambda *_: lambda properties, length, stamp: stamp << 2)
    assert not codes_agree(library)
