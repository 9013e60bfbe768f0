"""What is merged: segments stay few, each byte is written a few times, and nothing is merged that is apart."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from brokerd.tiers.upload.merging import FAN, SHUT_IN, Limits, choose, may_grow, span_ms
from remoting.tier.segments import Form, QueueSegments, Segment

MIB = 1 << 20
LARGEST = 256 * MIB
HOUR_MS = 3_600_000


def after(segments: QueueSegments, size: int, at_ms: int = 0) -> Segment:
    first, base = segments.end, segments.message_end
    return Segment(first, first + 1, base, size, size, at_ms, at_ms, base + size, 1, first, 0, 0)


def as_one(old: list[Segment], form: Form = Form.RAW) -> Segment:
    size = sum(each.message_bytes for each in old)
    last = old[-1]
    return old[0]._replace(
        end=last.end, message_bytes=size, last_ms=last.last_ms, log_end=last.log_end, form=form, stored_bytes=size
    )


def settle(segments: QueueSegments, limits: Limits) -> int:
    """Merge until nothing is left to merge; bytes written."""
    written = 0
    while chosen := list(choose(list(segments), limits)):
        assert len(chosen) > 1 or chosen[0].form is not limits.form
        assert all(one.end == other.first for one, other in itertools.pairwise(chosen))
        merged = as_one(chosen, limits.form)
        assert merged.message_bytes <= limits.largest_bytes
        segments.replace(merged)
        written += merged.message_bytes
    return written


@pytest.mark.parametrize(
    "sizes", [[300], [40_000], [1 * MIB], [16 * MIB], [100, 16 * MIB], [500, 70_000, 3 * MIB, 9 * MIB]]
)
def test_segments_stay_few_and_each_byte_is_written_a_few_times(sizes: list[int]) -> None:
    rng = random.Random(1)
    segments, limits = QueueSegments(), Limits(LARGEST, 0, Form.RAW)
    written, most = 0, 0
    for _ in range(4000):
        segments.add(after(segments, rng.choice(sizes)))
        written += settle(segments, limits)
        most = max(most, len(segments) - segments.message_end * 2 // LARGEST)
    ranges = math.ceil(math.log(LARGEST / min(sizes), FAN))
    assert most <= ranges * FAN * (SHUT_IN if len(sizes) > 1 else 1)
    assert written <= segments.message_end * (ranges + (len(sizes) > 1))


def test_what_is_apart_is_not_merged() -> None:
    segments, limits = QueueSegments(), Limits(LARGEST, 0, Form.RAW)
    for number in range(200):
        segment = after(segments, 100)
        segments.add(segment._replace(first=segment.first + number % 2, end=segment.end + number % 2))
    assert settle(segments, limits) > 0
    assert len(segments) == 101  # pairs, and a gap behind each


def test_segments_that_expire_are_of_one_span_of_time() -> None:
    reserved_ms = 16 * HOUR_MS
    segments, limits = QueueSegments(), Limits(LARGEST, span_ms(reserved_ms), Form.RAW)
    for minute in range(600):
        segments.add(after(segments, 1000, minute * 60_000))
        settle(segments, limits)
    assert limits.span_ms == HOUR_MS
    assert all(each.last_ms - each.first_ms < HOUR_MS for each in segments)
    assert [each.messages for each in segments][:9] == [60] * 9
    assert (span_ms(0), span_ms(30 * 24 * HOUR_MS), span_ms(640 * 24 * HOUR_MS)) == (0, 24 * HOUR_MS, 240 * HOUR_MS)


def test_an_archive_is_made_of_what_is_large_and_of_what_is_merged() -> None:
    segments = QueueSegments()
    for size in (LARGEST, LARGEST // 2, 100, 100):
        segments.add(after(segments, size))
    settle(segments, Limits(LARGEST, 0, Form.BLOCKS))
    assert [each.form for each in segments] == [Form.BLOCKS, Form.BLOCKS, Form.RAW, Form.RAW]


def longer(last: Segment, size: int, at_ms: int) -> Segment:
    whole = last.message_bytes + size
    return last._replace(
        end=last.end + 1, message_bytes=whole, stored_bytes=whole, last_ms=at_ms, log_end=last.log_end + size
    )


@pytest.mark.parametrize(("size", "form", "copies"), [(300, Form.RAW, 1), (40_000, Form.RAW, 1), (300, Form.BLOCKS, 3)])
def test_what_grows_is_written_once_more_and_segments_stay_few(size: int, form: Form, copies: int) -> None:
    segments, limits, written, most = QueueSegments(), Limits(LARGEST // 64, 0, form), 0, 0
    for number in range(20_000):
        if len(segments) and may_grow(segments.last, number, limits):
            segments.grow(longer(segments.last, size, number))
            continue
        segments.add(after(segments, size, number))
        while chosen := list(choose(list(segments)[:-1], limits)):  # the last one is young
            segments.replace(as_one(chosen, form))
            written += sum(each.message_bytes for each in chosen)
        most = max(most, len(segments) - segments.message_end * 2 // limits.largest_bytes)
    assert most <= copies * FAN
    assert written <= copies * segments.message_end


def test_a_segment_grows_within_a_span_of_time_and_a_range_of_sizes() -> None:
    segments = QueueSegments()
    last = after(segments, 32 * MIB - 1, 5 * HOUR_MS)
    always, hourly = Limits(1 << 30, 0, Form.RAW), Limits(1 << 30, HOUR_MS, Form.RAW)
    assert may_grow(last, 99 * HOUR_MS, always)
    assert not may_grow(longer(last, 1, 5 * HOUR_MS), 5 * HOUR_MS, always), "32 of them make the largest one"
    assert [may_grow(last, at_ms, hourly) for at_ms in (5 * HOUR_MS, 6 * HOUR_MS - 1, 6 * HOUR_MS)] == [
        True,
        True,
        False,
    ]
    assert not may_grow(last._replace(form=Form.BLOCKS), 5 * HOUR_MS, always)
    archived = always._replace(form=Form.BLOCKS)
    assert [may_grow(after(segments, size), 0, archived) for size in (32 * 1024 - 1, 32 * 1024)] == [True, False]
