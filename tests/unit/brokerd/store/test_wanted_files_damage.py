"""Files of the log that topics want kept, where files of queues are damaged or cannot be read: nothing goes by mistake, and
nothing ends."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.store.queues.consume_queue import DIRECTORY
from brokerd.store.settings import HOUR_MS
from brokerd.store.unit import UNIT_BYTES
from tests.support.disks import FaultyDisk
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, SETTINGS
from tests.unit.brokerd.store.test_wanted_files import House, house


async def restarted(home: House) -> House:
    """With nothing of queues in memory."""
    await home.keeper.stop()
    home.store.close()
    again = house({"Kept": 100}, home.disk, home.clock)
    again.clock.now_ms += 20 * HOUR_MS
    return again


async def damaged(messages: int, unit: int, position_bit: int) -> House:
    """A topic's messages in the first file, one of their units changed after a start."""
    disk = FaultyDisk(Random(1))
    home = house({"Kept": 100}, disk)
    home.put("Other")
    home.put("Kept", messages, hours=0)
    assert home.file == 0
    home.fill("Other", 5)
    home.put("Kept", 2)
    again = await restarted(home)
    byte, bit = divmod(position_bit, 8)
    disk.flip_bit(f"{DIRECTORY}/Kept/0/{0:020d}", unit * UNIT_BYTES + 7 - byte, bit)
    return again


@pytest.mark.parametrize("bit", [9, 10, 14, 40, 62])
@pytest.mark.parametrize(("messages", "unit"), [(1, 0), (2, 1), (3, 2), (2, 0), (1, 1)])
async def test_a_unit_that_is_damaged_lets_no_file_go(messages: int, unit: int, bit: int) -> None:
    home = await damaged(messages, unit, bit)
    assert await home.round() == 0
    home.clock.now_ms += 200 * HOUR_MS
    assert await home.round() == home.file, "it counts as young as the file's last message, no younger"
    await home.keeper.stop()


@pytest.mark.parametrize("bit", [9, 10, 14, 40, 62])
async def test_the_only_unit_of_a_queue_may_be_damaged(bit: int) -> None:
    disk = FaultyDisk(Random(1))
    home = house({"Kept": 100}, disk)
    home.put("Other")
    home.put("Kept")
    assert home.file == 0
    home.fill("Other", 5)
    again = await restarted(home)
    byte, in_byte = divmod(bit, 8)
    disk.flip_bit(f"{DIRECTORY}/Kept/0/{0:020d}", 7 - byte, in_byte)
    assert await again.round() == 0
    assert (again.kept.files > 0, again.kept.topic) == (True, "Kept")
    await again.keeper.stop()


async def test_units_that_cannot_be_read_let_no_file_go_and_end_nothing() -> None:
    disk = FaultyDisk(Random(1))
    home = house({"Kept": 100}, disk)
    home.put("Kept")
    home.fill("Other", 5)
    again = await restarted(home)
    disk.spoil_page(f"{DIRECTORY}/Kept/0/{0:020d}", 0)
    assert await again.round() == 0
    again.clock.now_ms += 200 * HOUR_MS
    assert await again.round() == again.file
    await again.keeper.stop()


async def test_a_queue_that_cannot_be_read_keeps_its_files_and_those_of_the_log_go() -> None:
    disk = FaultyDisk(Random(1))
    home = house({}, disk)
    home.put("Wide", 5 * SETTINGS.queue_file_units)
    home.fill("Other", 2)
    again = await restarted(home)
    first, bad = (f"{DIRECTORY}/Wide/0/{number * SETTINGS.queue_file_units * UNIT_BYTES:020d}" for number in (0, 2))
    disk.spoil_page(bad, 0)
    begin = await again.round()
    assert begin > 0
    assert disk.names("commitlog")[0] == f"{begin * SEGMENT_BYTES:020d}", "what left the log left the disk"
    assert disk.exists(first)
    disk.bad_pages.clear()
    assert await again.round() > begin
    assert not disk.exists(first), "when it can be read again it goes as well"
    await again.keeper.stop()
