"""Brokers of both kinds in one group, under our controllers: elected, killed and back, with equal logs at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.apache import Session
from tests.interop.mixed import SEGMENT_BYTES, MixedGroup

pytestmark = pytest.mark.slow


@pytest.fixture
def group(tmp_path: Path, session: Session) -> Iterator[MixedGroup]:
    with MixedGroup(tmp_path / "group", session) as group:
        yield group


def test_ours_follows_a_master_of_the_original(group: MixedGroup) -> None:
    original = group.add_original()
    group.wait_for_master(original)
    sent = group.send(1500)
    ours = group.add_ours()
    group.wait_in_sync(original, ours)
    sent += group.send(3000)
    assert group.master is original
    group.wait_until_equal_length()
    compared = group.compare(3 * SEGMENT_BYTES)
    group.check_bodies(sent)
    assert len(sent) == 4500
    assert compared.files >= 4
    assert compared.epochs == 1
    following = group.admin.broker_state(ours.address)["channel"]["following"]
    assert (following["layout"], following["copies"], following["cuts"]) == ("current", 0, 0)


def test_a_slave_of_the_original_follows_ours(group: MixedGroup) -> None:
    ours = group.add_ours()
    group.wait_for_master(ours)
    sent = group.send(1500)
    original = group.add_original()
    group.wait_in_sync(ours, original)
    sent += group.send(3000)
    assert group.master is ours
    group.wait_until_equal_length()
    compared = group.compare(3 * SEGMENT_BYTES)
    group.check_bodies(sent)
    assert len(sent) == 4500
    assert compared.files >= 4
    (peer,) = group.admin.broker_state(ours.address)["channel"]["replicas"]
    assert (peer["layout"], peer["inSync"]) == ("current", True)


def test_there_and_back_through_kills_and_elections(group: MixedGroup) -> None:
    original = group.add_original()
    group.wait_for_master(original)
    ours = group.add_ours()
    group.wait_in_sync(original, ours)
    sent = group.send(800)
    masters = [group.master]
    for victim, heir in ((original, ours), (ours, original)):
        assert group.master is victim
        victim.process.kill()
        group.wait_for_master(heir)
        masters.append(heir)
        sent += group.send(800)
        victim.process.start()
        group.wait_in_sync(original, ours)
        sent += group.send(400)
    for heir in (ours, original, ours):
        group.elect(heir)
        masters.append(heir)
        sent += group.send(800)
        group.wait_in_sync(original, ours)
    assert [each.is_ours for each in masters] == [False, True, False, True, False, True]
    group.wait_until_equal_length()
    compared = group.compare(4 * SEGMENT_BYTES)
    group.check_bodies(sent)
    assert len(sent) == 800 + 2 * 1200 + 3 * 800
    assert compared.epochs == len(masters) == 6
