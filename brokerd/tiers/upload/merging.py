"""Which segments of a queue are made into one next, so that they stay few however long little is uploaded (pure).

Sizes fall into ranges, each `FAN` times the one below it, down from the largest that a segment has: what is at least half of
that is merged no more. Adjacent segments of a range or below are merged once they make one of the range above, so that each
byte is written once for each range that it passes, and fewer than `FAN` segments of a range stand side by side. Small ones that
are shut in, by a gap, by a larger one or because their day is over, are merged as they are: nothing comes to them any more.

Where a store can append, a segment grows through the lower ranges without being written again, up to the range from which the
largest are made: so its bytes are written once more, and then lie in one piece on a disk. What is to be compressed grows to
much less, as merging does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from remoting.tier.segments import Form, Segment

FAN: Final = 32
SHUT_IN: Final = 8  # so many, between larger ones, are worth being written once more

_RANGES: Final = 8
_DAY_MS: Final = 86_400_000
_FEWEST_SPANS: Final = 16  # of the time that messages are kept
_MOST_SPANS: Final = 64


class Limits(NamedTuple):
    """`largest_bytes` of messages are in a merged segment at most, all from a `span_ms` of time counted from 1970 on (0 = from
    any time). `form` is how it is to be stored."""

    largest_bytes: int
    span_ms: int
    form: Form


def choose(segments: Sequence[Segment], limits: Limits) -> Sequence[Segment]:
    """The segments that are to be made into one, in order; none when all is as it should be."""
    other_form: Sequence[Segment] = ()
    for run, is_shut_in in _runs(segments, limits):
        chosen = _choose(run, limits.largest_bytes)
        if not chosen and is_shut_in and len(run) > 1:
            chosen = run
        if chosen:
            return chosen
        if not other_form and is_shut_in and limits.form is not Form.RAW and run[0].form is not limits.form:
            other_form = run
    return other_form


def may_grow(last: Segment, first_ms: int, limits: Limits) -> bool:
    """Whether more messages, the first of which was stored then, go to a segment rather than behind it."""
    goal = limits.largest_bytes // (FAN if limits.form is Form.RAW else FAN**3)
    is_of_one_span = not limits.span_ms or last.first_ms // limits.span_ms == first_ms // limits.span_ms
    return last.form is Form.RAW and last.message_bytes < goal and is_of_one_span


def span_ms(reserved_ms: int) -> int:
    """From how much time a merged segment may be when messages expire after so long: they go by whole segments."""
    return max(reserved_ms // _MOST_SPANS, min(_DAY_MS, reserved_ms // _FEWEST_SPANS))


def _runs(segments: Sequence[Segment], limits: Limits) -> Iterator[tuple[Sequence[Segment], bool]]:
    """Adjacent segments that may be merged, and whether nothing is added to them any more; large ones are alone."""
    run: list[Segment] = []
    for segment in segments:
        is_large = segment.message_bytes * 2 >= limits.largest_bytes
        if run and (is_large or not _may_follow(run[-1], segment, limits.span_ms)):
            yield run, True
            run = []
        if is_large:
            yield [segment], True
        else:
            run.append(segment)
    if run:
        yield run, False


def _may_follow(before: Segment, segment: Segment, span_ms: int) -> bool:
    """No gap is between them, and they are of one span of time."""
    if segment.first != before.end or segment.base != before.message_end:
        return False
    return not span_ms or before.first_ms // span_ms == segment.first_ms // span_ms


def _choose(run: Sequence[Segment], largest: int) -> Sequence[Segment]:
    """From the lowest range on. What is below the least of them counts as that."""
    goals = [largest // FAN**number for number in range(_RANGES) if largest // FAN**number]
    return next((chosen for goal in reversed(goals) if (chosen := _choose_below(run, goal, largest))), ())


def _choose_below(run: Sequence[Segment], goal: int, largest: int) -> Sequence[Segment]:
    """Of those below the range that begins with `goal`, side by side: what makes one of it, or is shut in by larger ones."""
    begin = total = 0
    for number, segment in enumerate(run):
        if segment.message_bytes >= goal:
            if number - begin >= SHUT_IN:
                return run[begin:number]
            begin, total = number + 1, 0
            continue
        if total + segment.message_bytes > largest:
            return run[begin:number]
        total += segment.message_bytes
        if total >= goal and number > begin:
            return run[begin : number + 1]
    return ()
