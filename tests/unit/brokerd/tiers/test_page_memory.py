"""Memory that is lent is nobody else's until the last part of it goes; what is free is used again, and bounded."""

from __future__ import annotations

import ctypes
import threading

from brokerd.tiers.objects.page_memory import LARGE_PAGE_BYTES, PAGE_BYTES, PageMemory


def address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_it_begins_at_a_page_and_is_as_long_as_was_asked_for() -> None:
    memory = PageMemory()
    for size in (1, PAGE_BYTES, 128 * 1024 + 1, 1 << 20):
        view = memory.take(size)
        assert len(view) >= size
        assert address_of(view) % PAGE_BYTES == 0
        view[size - 1] = 7


def test_what_is_lent_is_nobody_elses_until_the_last_part_of_it_goes() -> None:
    memory = PageMemory()
    view = memory.take(1000)
    part, address = view[10:20].toreadonly(), address_of(view)
    del view
    others = [memory.take(1000) for _ in range(3)]
    assert address not in map(address_of, others)
    assert memory.free_bytes == 0
    part.release()
    del part
    assert memory.free_bytes == 128 * 1024
    again = memory.take(1000)
    assert address_of(again) == address
    assert memory.free_bytes == 0


def test_another_size_takes_other_memory() -> None:
    memory = PageMemory()
    view = memory.take(1000)
    del view
    other = memory.take(1 << 20)
    assert len(other) == 1 << 20
    assert memory.free_bytes == 128 * 1024


def test_what_nearly_fills_a_large_page_has_one() -> None:
    memory = PageMemory()
    for size, expected in (
        (LARGE_PAGE_BYTES * 7 // 8, LARGE_PAGE_BYTES),
        (LARGE_PAGE_BYTES, LARGE_PAGE_BYTES),
        (LARGE_PAGE_BYTES * 7 // 8 - 1, LARGE_PAGE_BYTES * 7 // 8),
        (LARGE_PAGE_BYTES + 1, LARGE_PAGE_BYTES + 128 * 1024),
        (2 * LARGE_PAGE_BYTES - 1, 2 * LARGE_PAGE_BYTES),
    ):
        view = memory.take(size)
        assert len(view) == expected
        view[0] = view[-1] = 1


def test_what_is_free_is_bounded_and_the_oldest_goes() -> None:
    memory = PageMemory(most_free_bytes=512 * 1024)
    views = [memory.take(128 * 1024) for _ in range(4)]
    views.clear()
    assert memory.free_bytes == 512 * 1024
    larger = memory.take(384 * 1024)
    del larger
    assert memory.free_bytes == 512 * 1024
    kept = memory.take(384 * 1024)
    assert memory.free_bytes == 128 * 1024
    assert len(kept) == 384 * 1024
    larger = memory.take(1 << 20)
    del larger
    assert memory.free_bytes == 0, "more than is kept at all"


def test_threads_never_have_the_same() -> None:
    memory = PageMemory()
    failed = []

    def work(number: int) -> None:
        for _ in range(300):
            view = memory.take(128 * 1024)
            view[0] = view[-1] = number
            other = memory.take(128 * 1024)
            other[0] = other[-1] = number + 100
            if (view[0], view[-1], other[0], other[-1]) != (number, number, number + 100, number + 100):
                failed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
