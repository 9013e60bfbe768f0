"""The kernels' checksums are those of the general path."""

from __future__ import annotations

from random import Random

from brokerd.sending.tails import HIGH, LOW, MASK, MIDDLE, seal_alike
from remoting.record.checksum import reserve, seal, tail_of, tails_of
from tests.unit.remoting.record.test_checksum import record


def test_a_tail_is_put_together_of_three_pieces() -> None:
    rng = Random(1)
    numbers = [
        0,
        1,
        9,
        10,
        9999,
        10_000,
        10_000_000,
        257_825_025,
        MASK - 1,
        MASK,
        *(rng.randrange(MASK) for _ in range(5000)),
    ]
    tails = [LOW[c % 10_000] + MIDDLE[c // 10_000 % 1000] + HIGH[c // 10_000 // 1000] for c in numbers]
    assert tails == [tail_of(c) for c in numbers]
    assert b"".join(tails) == tails_of(numbers)


def test_records_of_one_size_are_sealed_as_each_of_them_is() -> None:
    records = [record(b"%04d" % number, reserve(b"TAGS\x01a\x02")) for number in range(130)]
    sealed = bytearray(b"".join(records))
    seal_alike(sealed, len(records), len(records[0]))
    assert sealed == b"".join(map(seal, records))
