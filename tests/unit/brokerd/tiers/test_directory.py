"""Objects as files: all of their bytes, whatever their memory is like, or nothing; also where nobody can write directly."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from brokerd.tiers.objects.backend import Backend, open_backend
from brokerd.tiers.objects.interface import AlreadyThere, Listed, NotThere, ObjectStoreError, Refused, Unknown
from brokerd.tiers.settings import TierSettings
from remoting.disk import Bytes
from remoting.tier.names import Kind, manifest_name, object_name

NAME = "Orders/0/m/object"
LONG = 5 * (1 << 20) + 77


@pytest.fixture
def store(tmp_path: Path) -> Backend:
    return open_backend(TierSettings(url=f"file://{tmp_path}/tier"), "c/broker-a")


def at_a_page(content: bytes) -> memoryview:
    memory = mmap.mmap(-1, len(content) + 1)
    memory[: len(content)] = content
    return memoryview(memory)[: len(content)]


def files_of(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "tier").rglob("*") if path.is_file()]


def everywhere_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a file system that can only read by way of the page cache."""
    monkeypatch.setattr("brokerd.tiers.objects.directory.fcntl.fcntl", lambda *_: 0)


async def check(store: Backend, tmp_path: Path, pieces: Sequence[Bytes]) -> None:
    content = b"".join(pieces)
    await store.put(NAME, pieces)
    assert await store.get_all(NAME, 9 * LONG) == content
    assert bytes(await store.get(NAME, 10, len(content) - 20)) == content[10:-10]
    assert files_of(tmp_path) == ["object"], "no draft"
    with pytest.raises(AlreadyThere):
        await store.put(NAME, pieces)
    assert files_of(tmp_path) == ["object"]


@pytest.mark.parametrize("length", [100, 4096, 1 << 20, LONG])
async def test_memory_that_begins_at_a_page(store: Backend, tmp_path: Path, length: int) -> None:
    await check(store, tmp_path, [at_a_page(random.Random(1).randbytes(length))])


async def test_pieces_of_any_kind_behind_each_other(store: Backend, tmp_path: Path) -> None:
    content = random.Random(2).randbytes(LONG)
    aligned = at_a_page(content)
    await check(store, tmp_path, [aligned[: 2 << 20], aligned[2 << 20 :], content, memoryview(content)[3:], aligned])


@pytest.mark.parametrize(
    ("start", "length"),
    [
        (0, 10),
        (5, 1 << 20),
        (4096, LONG - 4096),
        (77, 2 << 20),
        (8192, 1 << 20),
        (4095, (4 << 20) - 1),
        (LONG - 9, 9),
        (LONG - (1 << 20), 1 << 20),
    ],
)
async def test_any_range_is_read(store: Backend, start: int, length: int) -> None:
    content = random.Random(5).randbytes(LONG)
    await store.put(NAME, content)
    found = await store.get(NAME, start, length)
    assert bytes(found) == content[start : start + length]
    assert memoryview(found).readonly, "who gets it needs no copy"
    assert bytes(await store.get(NAME, start, length)) == content[start : start + length], "in other memory"


@pytest.mark.parametrize("length", [20, 2 << 20])
async def test_a_range_that_is_not_all_there_is_none(store: Backend, length: int) -> None:
    await store.put(NAME, bytes(LONG))
    with pytest.raises(NotThere, match=f"has 10 of the {length} bytes"):
        await store.get(NAME, LONG - 10, length)


async def test_memory_of_a_read_is_used_again_when_nobody_has_a_part_of_it(store: Backend) -> None:
    first, second = (random.Random(seed).randbytes(1 << 20) for seed in (6, 7))
    await store.put(NAME, first + second)
    found = memoryview(await store.get(NAME, 0, 1 << 20))[77:-77]
    for _ in range(3):
        assert await store.get(NAME, 1 << 20, 1 << 20) == second
    assert found == first[77:-77]


async def test_a_file_system_that_cannot_write_directly(
    store: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, asked = fcntl.fcntl, list[int]()

    def without(descriptor: int, command: int, flags: int = 0) -> int:
        if flags & os.O_DIRECT:
            asked.append(flags)
            raise OSError(errno.EINVAL, "Invalid argument")
        return whole(descriptor, command, flags)

    monkeypatch.setattr("brokerd.tiers.objects.directory.fcntl.fcntl", without)
    content = random.Random(3).randbytes(LONG)
    await check(store, tmp_path, [at_a_page(content)])
    assert asked, "it was tried"
    asked.clear()
    assert await store.get(NAME, 100, 2 << 20) == content[100 : 100 + (2 << 20)]
    assert asked, "likewise"


async def test_a_disk_that_cannot_be_read_directly_either_is_an_error(
    store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_descriptor: int, _buffers: Sequence[Bytes], _offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    await store.put(NAME, bytes(LONG))
    everywhere_direct(monkeypatch)
    monkeypatch.setattr("brokerd.tiers.objects.directory.os.preadv", broken)
    with pytest.raises(ObjectStoreError, match="Input/output error"):
        await store.get(NAME, 0, 1 << 20)


async def test_reads_that_are_cut_short_go_on(store: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    content, whole, asked = random.Random(8).randbytes(LONG), os.preadv, list[int]()

    def short(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        asked.append(offset)
        return whole(descriptor, [buffers[0][: 256 * 1024]], offset)

    await store.put(NAME, content)
    everywhere_direct(monkeypatch)
    monkeypatch.setattr("brokerd.tiers.objects.directory.os.preadv", short)
    assert await store.get(NAME, LONG - (1 << 20), 1 << 20) == content[-(1 << 20) :]
    assert len(asked) > 3


async def test_what_was_cut_short_inside_of_a_page_is_no_end_of_a_file(
    store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took it for one would say that the object lost what follows."""
    content, whole = random.Random(9).randbytes(LONG), os.preadv

    def short(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return whole(descriptor, [buffers[0][: 256 * 1024 + 512]], offset)

    await store.put(NAME, content)
    everywhere_direct(monkeypatch)
    monkeypatch.setattr("brokerd.tiers.objects.directory.os.preadv", short)
    assert await store.get(NAME, 100, 1 << 20) == content[100 : 100 + (1 << 20)]


async def test_what_cannot_be_written_whole_is_not_there(
    store: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("brokerd.tiers.objects.directory.os.fdatasync", full)
    with pytest.raises(Refused, match="make room there"):
        await store.put(NAME, b"abc")
    assert files_of(tmp_path) == []


async def test_what_somebody_was_killed_over_is_removed_and_nothing_else(store: Backend, tmp_path: Path) -> None:
    await store.put(NAME, b"abc")
    directory = (tmp_path / "tier" / "c" / "broker-a" / NAME).parent
    names = {"draft#77": 2, "object#1": 2, "draft#78": 4, "draft#": 2, "#7 object": 2, "object": 2}
    for name, written_s in names.items():
        (directory / name).write_bytes(b"abc")
        os.utime(directory / name, (written_s, written_s))
    elsewhere = tmp_path / "tier" / "c" / "broker-b" / "draft#1"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(b"")
    os.utime(elsewhere, (2, 2))
    assert await store.remove_unfinished(3000) == 2
    assert {*files_of(tmp_path)} == names.keys() - {"draft#77", "object#1"} | {"draft#1"}
    assert await store.get_all(NAME, 9) == b"abc"


async def test_who_is_killed_while_the_library_writes_leaves_what_is_removed(store: Backend, tmp_path: Path) -> None:
    kept, long = list[Path](), [bytes(1 << 20)] * 20

    def keep() -> None:
        kept.extend(tmp_path.rglob("*#*"))
        for path in kept:
            os.link(path, path.with_name(f"left-by-the-dead#{path.name.rpartition('#')[2]}"))

    async def parts() -> AsyncIterator[bytes]:
        for number, part in enumerate(long):
            yield part
            if number == 12:
                keep()

    await store.put_stream(NAME, parts())
    assert kept, "the library writes to such a name"
    assert await store.list("") == [Listed(NAME, 20 << 20, (await store.list(""))[0].modified_ms)]
    assert await store.remove_unfinished(time.time_ns() // 1_000_000 + 1000) == len(kept)
    assert files_of(tmp_path) == ["object"]


MIB = 1 << 20


@pytest.mark.parametrize(
    ("blocks", "free", "files", "free_files", "is_full"),
    [
        (0, 0, 0, 0, False),  # a file system that counts nothing
        (100_000 * MIB, 65 * MIB + 1, 0, 0, False),
        (100_000 * MIB, 64 * MIB, 0, 0, True),
        (64 * MIB, 2 * MIB, 0, 0, False),
        (64 * MIB, MIB, 0, 0, True),
        (100_000 * MIB, 10_000 * MIB, 6_400_000, 5000, False),
        (100_000 * MIB, 10_000 * MIB, 6_400_000, 4000, True),
    ],
)
async def test_of_a_file_system_a_little_is_left_by_messages(
    store: Backend, monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, files: int, free_files: int, is_full: bool
) -> None:
    there = SimpleNamespace(f_frsize=1, f_blocks=blocks, f_bavail=free, f_files=files, f_favail=free_files)
    monkeypatch.setattr("brokerd.tiers.objects.directory.os.statvfs", lambda _: there)
    name = object_name("Orders", 0, Kind.ENTRIES, 0, 1, 1)
    with pytest.raises(Refused, match="make room there") if is_full else nullcontext():
        await store.put(name, bytes(100))
    await store.put(manifest_name(1, 0), bytes(100))


async def test_a_name_that_may_be_lost_is_not_known_to_be_there(
    store: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_self: object, _path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("brokerd.tiers.objects.directory.Durable.make", lost)
    with pytest.raises(Unknown, match="loss of power"):
        await store.put(NAME, b"abc")


async def test_a_directory_that_was_taken_away_is_not_made_again(store: Backend, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tier")
    with pytest.raises(Refused, match="the directory is away, or something else is in its place: mount it again"):
        await store.put(NAME, b"abc")
    assert not (tmp_path / "tier").exists()


async def test_of_a_directory_that_is_away_nobody_says_that_it_lost_something(store: Backend, tmp_path: Path) -> None:
    await store.put(NAME, b"content")
    (tmp_path / "tier").rename(tmp_path / "away")
    with pytest.raises(Refused, match="something else is in its place: mount it again"):
        await store.get(NAME, 0, 1)


# ---- what is appended


def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long files were when they were made durable."""
    lengths, plain = list[int](), os.fdatasync

    def sync(descriptor: int) -> None:
        lengths.append(os.fstat(descriptor).st_size)
        plain(descriptor)

    monkeypatch.setattr("brokerd.tiers.objects.directory.os.fdatasync", sync)
    return lengths


async def test_a_file_gets_longer_and_is_durable_each_time(
    store: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, rng = synced(monkeypatch), random.Random(11)
    content = rng.randbytes(3 << 20)
    await store.put(NAME, [at_a_page(content)])
    for size in (1, 4095, 4096, 100_000, 7):
        piece = rng.randbytes(size)
        await store.append(NAME, len(content), [piece[: size // 2], memoryview(piece)[size // 2 :]])
        content += piece
        assert lengths[-1] == len(content), "all of it was written before that"
        assert bytes(await store.get(NAME, len(content) - (1 << 20), 1 << 20)) == content[-(1 << 20) :]
    assert await store.get_all(NAME, LONG) == content
    assert files_of(tmp_path) == ["object"]


@pytest.mark.parametrize(("at", "error"), [(2, AlreadyThere), (4, NotThere), (0, AlreadyThere), (1 << 40, NotThere)])
async def test_nobody_writes_but_at_a_files_end(store: Backend, at: int, error: type[ObjectStoreError]) -> None:
    await store.put(NAME, b"abc")
    with pytest.raises(error):
        await store.append(NAME, at, [b"d"])
    assert await store.get_all(NAME, 10) == b"abc"


async def test_a_file_that_is_gone_is_not_made_again(store: Backend, tmp_path: Path) -> None:
    with pytest.raises(NotThere):
        await store.append(NAME, 0, [b"d"])
    await store.put(NAME, b"abc")
    await store.remove([NAME])
    with pytest.raises(NotThere):
        await store.append(NAME, 3, [b"d"])
    assert files_of(tmp_path) == []
    (tmp_path / "tier").rename(tmp_path / "away")
    with pytest.raises(Refused, match="something else is in its place: mount it again"):
        await store.append(NAME, 3, [b"d"])


async def test_what_may_be_lost_is_not_known_to_be_there(
    store: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    await store.put(NAME, b"abc")
    monkeypatch.setattr("brokerd.tiers.objects.directory.os.fdatasync", broken)
    with pytest.raises(Unknown, match="Input/output error"):
        await store.append(NAME, 3, [b"d"])
    monkeypatch.undo()
    assert await store.get_all(NAME, 10) == b"abcd", "and so nobody may append a second time"
    with pytest.raises(AlreadyThere):
        await store.append(NAME, 3, [b"e"])


async def test_writes_that_are_cut_short_go_on(store: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite

    def short(descriptor: int, content: memoryview, offset: int) -> int:
        return whole(descriptor, content[:100], offset)

    await store.put(NAME, b"abc")
    monkeypatch.setattr("brokerd.tiers.objects.directory.os.pwrite", short)
    await store.append(NAME, 3, [bytes(350), b"end"])
    assert await store.get_all(NAME, 1000) == b"abc" + bytes(350) + b"end"
