"""What the console says of a tier's trouble is so now: it ends with the trouble, also when nothing is uploaded any more."""

from __future__ import annotations

from functools import partial

from brokerd.store.draft import Draft
from remoting.tier.contents import Queue, committed, expired, merged
from tests.unit.brokerd.tiers.world import HOST, World

TOPIC = "Orders"


def troubled_world() -> World:
    """A message waits, and the store does not answer."""
    world = World(1)
    world.turns.run(5000)
    assert world.core.tiers.is_open
    world.objects.is_down = True
    world.core.record_log.append_messages([Draft(TOPIC, 0, b"body", b"", world.turns.wall_ms(), HOST)])
    world.turns.run(5000)
    assert world.core.tiers.trouble
    return world


def test_it_ends_when_the_store_is_well_again() -> None:
    world = troubled_world()
    world.heal()
    world.turns.run(120_000)
    assert (world.core.tiers.trouble, len(world.core.tiers.pending)) == ("", 0)


def test_it_ends_when_what_could_not_be_uploaded_is_not_wanted_any_more() -> None:
    world = troubled_world()
    world.switch(TOPIC)
    world.turns.run(30_000)
    assert (world.core.tiers.trouble, len(world.core.tiers.pending)) == ("", 0)


def test_it_does_not_end_when_a_full_disk_took_what_could_not_be_uploaded() -> None:
    """Nobody asked the store anything then; what is behind that waits for it."""
    world = troubled_world()
    for _ in range(6):
        world.send(60)
        world.turns.run(1000)
    world.store.checkpoint()
    world.remove_files(needs_room=True)
    assert world.removed_files
    tiers = world.core.tiers
    for _ in range(300):
        world.turns.run(1000)
        assert tiers.trouble
    assert len(tiers.pending)
    world.heal()
    world.turns.run(120_000)
    assert (tiers.trouble, len(tiers.pending)) == ("", 0)


def test_it_ends_when_what_could_not_be_removed_is_removed_at_last() -> None:
    world = troubled_world()
    world.heal()
    world.turns.run(120_000)
    tiers = world.core.tiers
    assert tiers._commits is not None
    world.objects.fails_before = 1.0
    tiers._loop.spawn(tiers._commits._remove_old(), "remove")
    world.turns.run(1000)
    assert tiers.trouble
    world.heal()
    world.turns.run(60_000)
    assert not tiers.trouble


def test_messages_that_nobody_would_commit_are_not_put_over_and_over() -> None:
    """They are of a topic that was deleted, and the local store holds them for what waits."""
    world = World(1)
    world.turns.run(5000)
    tiers = world.core.tiers
    tiers.in_log._deleted_at = lambda topic: 1 << 60
    world.core.record_log.append_messages([Draft(TOPIC, 0, b"body", b"", world.turns.wall_ms(), HOST)])
    puts = len(world.stored.puts)
    world.turns.run(60_000)
    assert [name for name in world.stored.puts[puts:] if not name.startswith("manifest/")] == []
    tiers.in_log._deleted_at = lambda topic: -1
    world.turns.run(120_000)
    assert len(tiers.range_of(TOPIC, 0)) == 1
    assert not len(tiers.pending)


def test_a_change_that_fits_nothing_is_neither_in_the_manifest_nor_in_the_log() -> None:
    world = World(1)
    world.turns.run(5000)
    world.core.record_log.append_messages([Draft(TOPIC, 0, b"body", b"", world.turns.wall_ms(), HOST)])
    world.turns.run(60_000)
    tiers, queue, done = world.core.tiers, Queue(TOPIC, 0), list[str]()
    assert tiers._commits is not None
    once = tiers.segments_of(queue).last
    before = world.store.commitlog.end_offset, set(world.stored.objects)
    tiers._commits.add(committed(queue, once._replace(number=99)), lambda: done.append("again"))
    world.turns.run(10_000)
    assert (world.store.commitlog.end_offset, set(world.stored.objects), done) == (*before, [])
    world.turns.run(60_000)
    assert done == ["again"], "the queue is looked at once more, later"
    tiers._commits.add(
        committed(queue, once._replace(first=1, end=2, base=once.message_end)), lambda: done.append("fits")
    )
    world.turns.run(10_000)
    assert done == ["again", "fits"]


def test_a_merged_segment_that_fits_nothing_lets_its_queue_go_on_and_keeps_what_is_there() -> None:
    world = World(1)
    world.turns.run(5000)
    tiers, queue = world.core.tiers, Queue(TOPIC, 0)
    for _ in range(2):
        world.core.record_log.append_messages([Draft(TOPIC, 0, b"body", b"", world.turns.wall_ms(), HOST)])
        world.turns.run(5000)
    one, other = tiers.segments_of(queue)
    upkeep, commits = tiers.upkeep, tiers._commits
    assert upkeep is not None
    assert commits is not None
    both = one._replace(end=other.end, message_bytes=one.message_bytes + other.message_bytes, number=99)
    upkeep._changing[queue] = other.end
    commits.add(expired(queue, one.end), lambda: None)  # so the merged one fits nothing when its turn comes
    upkeep._take_out(merged(queue, both), partial(upkeep._merged, queue))
    assert not upkeep.lets_grow(queue, other, other.last_ms)
    world.turns.run(60_000)
    assert list(tiers.segments_of(queue)) == [other]
    assert upkeep.lets_grow(queue, other, other.last_ms), "it is about to be taken out no more"
    world.turns.run(1_200_000)
    assert set(other.names(*queue)) <= set(world.stored.objects)
