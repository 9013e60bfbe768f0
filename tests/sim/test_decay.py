"""Which bits flip in stories of decay, and that a byte which is not mended, or which others took over, breaks a promise."""

from __future__ import annotations

from unittest.mock import PropertyMock, patch

import pytest

from brokerd.store.log.layout import file_name, file_start
from remoting.record.layout import Field, heads
from tests.sim.broker import SimBroker
from tests.sim.cluster import SimCluster
from tests.sim.decay import LOG, Decay
from tests.sim.test_suspects import healthy
from tests.sim.world import Violation

_SIZE = heads(Field.SIZE)[0]


def _settled() -> tuple[SimCluster, SimBroker, Decay]:
    """A cluster whose clients are at rest, and what rots in it: a replica."""
    cluster = healthy(0)
    assert cluster is not None
    for client in cluster.clients:
        client.stop()
    cluster.world.run(500)
    broker = next(each for each in cluster.brokers if each is not cluster.master())
    return cluster, broker, Decay(cluster, broker, cluster.controllers[0])


def _last_record(broker: SimBroker) -> tuple[str, int, int]:
    """The file that it is in, and where in the log it begins and ends."""
    log = broker.core.store.commitlog
    start = file_start(log.end_offset - 1, broker.store_settings.segment_size_bytes)
    place = start
    while place + (size := _SIZE.unpack(log.read(place, 4))[0]) < log.end_offset:
        place += size
    return f"{LOG}/{file_name(start)}", place, place + size


def test_a_record_that_is_confirmed_in_part_may_be_replaced_so_none_of_its_bits_flips() -> None:
    _, broker, decay = _settled()
    path, begin, end = _last_record(broker)
    position = begin % broker.store_settings.segment_size_bytes + 1
    may_flip = {}
    for confirmed in (begin, begin + 2, end - 1, end):
        with patch.object(type(broker.core.replica), "confirm_offset", PropertyMock(return_value=confirmed)):
            may_flip[confirmed] = decay._has_copy(path, position), decay._has_copy(path, position - begin + end - 2)
    assert may_flip == {begin: (False, False), begin + 2: (False, False), end - 1: (False, False), end: (True, True)}


def test_a_flipped_byte_is_found_where_it_was_flipped_and_where_it_was_copied_to() -> None:
    cluster, broker, decay = _settled()
    path, begin, _ = _last_record(broker)
    position = begin % broker.store_settings.segment_size_bytes + 30
    other = next(each for each in cluster.brokers if each is not broker)
    decay._flip(broker, path, position, 3)
    with pytest.raises(Violation, match=f"{broker.name} has a rotten byte at {begin + 30}"):
        decay.check()
    broker.disk.flip_bit(path, position, 3)
    decay.check()
    other.disk.flip_bit(path, position, 3)
    with pytest.raises(Violation, match=f"{other.name} has a rotten byte at {begin + 30}"):
        decay.check()
