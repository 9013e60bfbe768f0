"""Which queue a message group belongs to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoting.message_groups import consistent_hash, queue_of_group


@given(st.text(max_size=30), st.integers(1, 64))
def test_a_group_has_one_queue_and_a_new_queue_moves_groups_only_to_itself(group: str, queues: int) -> None:
    before, after = queue_of_group(group, queues), queue_of_group(group, queues + 1)
    assert 0 <= before < queues
    assert after in (before, queues)


def test_groups_spread_over_the_queues_as_they_do_in_every_process() -> None:
    counts = [0] * 8
    for number in range(8000):
        counts[queue_of_group(f"order-{number}", 8)] += 1
    assert min(counts) > 800


def test_the_hash_is_guavas() -> None:
    # the values that Guava's own test has for its generator
    golden = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_hash(key, 100) for key in range(20)] == golden
    assert consistent_hash(10863919174838991, 11) == 6
    assert consistent_hash(2, 100001) == 80343
