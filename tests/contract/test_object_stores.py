"""What every `tiers.objects.interface.ObjectStore` does: a directory, memory, a real S3 server, and the twin of the tests."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import AsyncIterator, Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import obstore
import pytest

from brokerd.tiers.objects.backend import Backend, open_backend
from brokerd.tiers.objects.interface import AlreadyThere, NotThere, ObjectStore, ObjectStoreError, Refused
from brokerd.tiers.settings import TierSettings
from remoting.errors import SettingsError
from remoting.tier.names import Kind, clock_name, manifest_name, object_name
from tests.support.object_servers import PAGE_OBJECTS, S3Server, write_options
from tests.support.small_disk import small_disk
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.support.turns import Turns

T = TypeVar("T")

BUCKET = "contract"
DIRECTORY = "c/broker-a"
MANY = 5 * PAGE_OBJECTS // 2
LARGE = 20_000_000
LONG_MS = 1_000_000  # of a clock that is moved by hand
FULL = r"it is full: make room there, or keep less with tiers\.reserved_time_ms"
NAMES = ("%RETRY%g/0/a-1-1", "a|b/x", "with blank/é?#", "n" * 255 + "/0/a", "n" * 200)


class Used(NamedTuple):
    """A store, and how a coroutine of it is run to its end."""

    objects: ObjectStore
    runner: asyncio.Runner | None = None
    turns: Turns | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.runner is not None:
            return self.runner.run(work)
        assert self.turns is not None
        found: list[T] = []
        raised: list[Exception] = []
        Steps(self.turns).spawn(_kept(work, found, raised), "")
        self.turns.run(LONG_MS)
        if raised:
            raise raised[0]
        return found[0]

    def put(self, name: str, content: bytes | list[bytes]) -> None:
        self.run(self.objects.put(name, content))

    def append(self, name: str, at: int, *content: bytes) -> None:
        self.run(self.objects.append(name, at, content))

    def get(self, name: str, start: int, length: int) -> bytes:
        return self.run(self.objects.get(name, start, length))

    def names(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return [each.name for each in self.run(self.objects.list(prefix, after, limit))]

    def remove(self, *names: str) -> None:
        self.run(self.objects.remove(names))


async def _kept(work: Coroutine[Any, Any, T], found: list[T], raised: list[Exception]) -> None:
    try:
        found.append(await work)
    except ObjectStoreError as error:
        raised.append(error)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    s3_server.make_bucket(BUCKET)
    return BUCKET


@pytest.fixture(params=["directory", "memory", "s3", "twin"])
def store(request: pytest.FixtureRequest, tmp_path: Path, runner: asyncio.Runner) -> Used:
    match request.param:
        case "directory":
            return Used(open_backend(TierSettings(url=f"file://{tmp_path}/tier"), DIRECTORY), runner)
        case "memory":
            return Used(open_backend(TierSettings(url="memory:///"), DIRECTORY), runner)
        case "s3":
            request.getfixturevalue("bucket")
            return Used(
                on_server(
                    request.getfixturevalue("s3_server"), tmp_path, f"{BUCKET}/{quote(request.node.name, safe='')}"
                ),
                runner,
            )
    turns = Turns()
    return Used(FaultyObjects(Stored(), Steps(turns), turns, random.Random(1), appends=True), turns=turns)


def on_server(server: S3Server, directory: Path, bucket: str) -> Backend:
    options = write_options(directory / "options", server.port)
    return open_backend(TierSettings(url=f"s3://{bucket}", options_path=str(options)), DIRECTORY)


# ---- what all of them do


def test_what_was_put_is_there_as_a_whole_and_in_ranges(store: Used) -> None:
    store.put("a/b", [b"0123", b"456789"])
    assert store.run(store.objects.get_all("a/b", 10)) == b"0123456789"
    assert [store.get("a/b", *range_) for range_ in ((0, 10), (0, 1), (9, 1), (3, 4))] == [
        *(b"0123456789", b"0", b"9", b"3456"),
    ]


def test_nothing_is_replaced(store: Used) -> None:
    store.put("a", b"first")
    with pytest.raises(AlreadyThere):
        store.put("a", b"other")
    assert store.get("a", 0, 5) == b"first"


def test_what_is_appended_stands_behind_what_was_there(store: Used, request: pytest.FixtureRequest) -> None:
    can = ("directory" in request.node.name, "twin" in request.node.name)
    assert store.objects.appends == any(can), "the library puts whole objects"
    if not store.objects.appends:
        return
    store.put("a/b", [b"012", b"3"])
    store.append("a/b", 4, b"45", b"6")
    store.append("a/b", 7, bytes(100_000), b"end")
    assert store.get("a/b", 0, 8) == b"0123456\0"
    assert store.get("a/b", 100_006, 4) == b"\0end"
    assert [each.size for each in store.run(store.objects.list("a/"))] == [100_010]
    with pytest.raises(NotThere):
        store.get("a/b", 100_009, 2)


@pytest.mark.parametrize("range_", [(0, 4), (2, 2), (3, 1), (100, 5)])
def test_a_range_that_is_not_all_there_is_not_there(store: Used, range_: tuple[int, int]) -> None:
    store.put("a", b"abc")
    with pytest.raises(NotThere):
        store.get("a", *range_)


def test_what_was_never_put_is_not_there(store: Used) -> None:
    with pytest.raises(NotThere):
        store.get("a", 0, 1)
    with pytest.raises(NotThere):
        store.run(store.objects.get_all("a", 1))
    assert store.names("") == []


def test_no_more_is_read_than_somebody_wants(store: Used) -> None:
    store.put("a", b"abc")
    with pytest.raises(ObjectStoreError):
        store.run(store.objects.get_all("a", 2))


def test_an_empty_object_is_one(store: Used) -> None:
    store.put("a", b"")
    assert store.run(store.objects.get_all("a", 10)) == b""
    assert store.names("") == ["a"]
    with pytest.raises(NotThere):
        store.get("a", 0, 1)


def test_a_large_object_is_read_in_parts(store: Used) -> None:
    content = random.Random(1).randbytes(LARGE)
    store.put("large", [content[: LARGE // 3], content[LARGE // 3 :]])
    assert store.get("large", 0, LARGE) == content
    assert store.get("large", 12_345, 4 << 20) == content[12_345 : 12_345 + (4 << 20)]
    assert store.get("large", 7, (8 << 20) + 1) == content[7 : 8 + (8 << 20)]
    with pytest.raises(NotThere):
        store.get("large", 1, LARGE)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_taken_as_they_are(store: Used, name: str) -> None:
    store.put(name, b"abc")
    assert store.get(name, 1, 2) == b"bc"
    assert store.names("") == [name]
    assert store.names(name.rpartition("/")[0] + "/" if "/" in name else name[:3]) == [name]
    store.remove(name)
    assert store.names("") == []


def test_what_is_removed_is_gone_and_what_is_not_there_counts_as_removed(store: Used) -> None:
    for name in ("a/1", "a/2", "a/3"):
        store.put(name, b"x")
    store.remove("a/0", "a/1", "b/0", "a/3")
    assert store.names("") == ["a/2"]
    store.remove("a/1")
    store.remove()
    store.put("a/1", b"again")
    assert store.get("a/1", 0, 5) == b"again"


def test_a_listing_is_in_order_and_of_what_begins_so(store: Used) -> None:
    for name in ("manifest/2", "manifest/10", "manifests/1", "t/0/x", "manifest/1"):
        store.put(name, name.encode())
    assert store.names("manifest/") == ["manifest/1", "manifest/10", "manifest/2"]
    assert store.names("manifest/1") == ["manifest/1", "manifest/10"]
    assert store.names("manifest/", "manifest/1") == ["manifest/10", "manifest/2"]
    assert store.names("manifest/", "manifest/11") == ["manifest/2"], "what it is behind need not be there"
    assert store.names("manifest/", "", 2) == ["manifest/1", "manifest/10"]
    assert store.names("u") == []
    listed = store.run(store.objects.list("t/"))
    assert [(each.name, each.size) for each in listed] == [("t/0/x", 5)]


def test_a_long_listing_goes_on_behind_its_last_name(store: Used) -> None:
    expected = [f"m/{number:05d}" for number in range(MANY)]

    async def put_all() -> None:
        for name in expected:
            await store.objects.put(name, b"")

    store.run(put_all())
    assert store.names("m/", "", 2 * MANY) == expected
    limit = MANY - 10  # in the middle of a server's last page
    assert store.names("m/", "", limit) == expected[:limit]
    assert store.names("m/", expected[limit - 1], limit) == expected[limit:]


def test_a_directory_is_walked_once_for_a_listing_in_pages(
    tmp_path: Path, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Used(open_backend(TierSettings(url=f"file://{tmp_path}/tier"), DIRECTORY), runner)
    expected = [f"m/{number}" for number in range(9)]
    for name in expected:
        store.put(name, b"")
    walks = []
    plain = obstore.list

    def counted(*arguments: Any, **options: Any) -> Any:
        walks.append(options)
        return plain(*arguments, **options)

    monkeypatch.setattr(obstore, "list", counted)
    found = store.names("", "", 2)
    while page := store.names("", found[-1], 2):
        found += page
    assert found == expected
    assert len(walks) == 2, "and once more to see that there is nothing behind the last one"
    store.put("m/3a", b"")
    assert store.names("", "m/3", 2) == ["m/3a", "m/4"], "who begins elsewhere sees what is there now"


# ---- what goes wrong says what to do


def test_a_bucket_that_is_not_there(s3_server: S3Server, tmp_path: Path, runner: asyncio.Runner) -> None:
    store = Used(on_server(s3_server, tmp_path, "no-such-bucket"), runner)
    assert_refused(store, "there is no such bucket: create it, or name another one in tiers.url")


def test_credentials_that_are_not_accepted(
    s3_server: S3Server, bucket: str, tmp_path: Path, runner: asyncio.Runner
) -> None:
    store = Used(on_server(s3_server, tmp_path, f"{bucket}/refused"), runner)
    s3_server.refuse(everybody=True)
    try:
        assert_refused(
            store, "does not accept the credentials, or they do not allow this: mend the file of tiers.options_path"
        )
    finally:
        s3_server.refuse(everybody=False)
    store.put("a", b"accepted again")


def assert_refused(store: Used, sentence: str) -> None:
    asked = (
        *(lambda: store.put("a", b""), lambda: store.get("a", 0, 1), lambda: store.run(store.objects.get_all("a", 1))),
        *(lambda: store.names(""), lambda: store.remove("a"), lambda: store.remove("a", "b")),
    )
    for ask in asked:
        with pytest.raises(Refused, match=sentence):
            ask()


def test_a_full_disk(tmp_path: Path, runner: asyncio.Runner) -> None:
    with small_disk(tmp_path / "disk", "size=64k"):
        store = Used(open_backend(TierSettings(url=f"file://{tmp_path}/disk"), DIRECTORY), runner)
        store.put("a", bytes(40_000))
        with pytest.raises(Refused, match=FULL):
            store.put("b", bytes(40_000))
        assert store.names("") == ["a"], "half an object is none"
        store.remove("a")
        store.put("b", bytes(40_000))


def messages_name(number: int) -> str:
    return object_name("T", 0, Kind.MESSAGES, number, 1, number)


def test_messages_leave_room_for_what_says_which_of_them_go(tmp_path: Path, runner: asyncio.Runner) -> None:
    """A directory that they filled to the last byte would stay full whatever is to be kept no longer: also that is put there."""
    with small_disk(tmp_path / "disk", "size=8m"):
        store = Used(open_backend(TierSettings(url=f"file://{tmp_path}/disk"), DIRECTORY), runner)
        numbers = count()
        for size in (100_000, 4096, 1):
            with pytest.raises(Refused, match=FULL):
                fill(store, numbers, size)
        with pytest.raises(Refused, match=FULL):
            store.append(messages_name(0), 100_000, bytes(4096))
        with pytest.raises(Refused, match=FULL):
            store.run(store.objects.put_stream(messages_name(9999), several(4096)))
        with pytest.raises(Refused, match=FULL):
            store.put("timers/0000000001-1-1", b"1")
        for name in (manifest_name(1, 0), clock_name(1, 1), "state/1", "rmq_sys_INDEX/0/INDEX/1"):
            store.put(name, bytes(20_000))
        store.remove(messages_name(1), messages_name(2))
        store.append(messages_name(0), 100_000, bytes(4096))


def test_what_is_merged_leaves_that_room_too(tmp_path: Path, runner: asyncio.Runner) -> None:
    disk = tmp_path / "disk"

    async def parts(count: int, free: list[int]) -> AsyncIterator[bytes]:
        for _ in range(count):
            there = os.statvfs(disk)
            free.append(there.f_bavail * there.f_frsize)
            yield bytes(1 << 20)

    with small_disk(disk, "size=64m"):
        store = Used(open_backend(TierSettings(url=f"file://{disk}"), DIRECTORY), runner)
        store.put(messages_name(1), bytes(10 << 20))
        store.run(store.objects.put_stream(messages_name(2), parts(20, [])))
        assert len(store.get(messages_name(2), 0, 20 << 20)) == 20 << 20
        free: list[int] = []
        with pytest.raises(Refused, match=FULL):
            store.run(store.objects.put_stream(messages_name(3), parts(60, free)))
        assert len(free) > 16, "it was on its way"
        assert min(free) >= 1 << 20
        assert {*store.names("T")} == {messages_name(1), messages_name(2)}


def fill(store: Used, numbers: Iterator[int], size: int) -> None:
    for number in numbers:
        store.put(messages_name(number), bytes(size))


async def several(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield bytes(size)


def test_a_disk_that_is_full_in_the_middle_of_an_append(tmp_path: Path, runner: asyncio.Runner) -> None:
    with small_disk(tmp_path / "disk", "size=64k"):
        store = Used(open_backend(TierSettings(url=f"file://{tmp_path}/disk"), DIRECTORY), runner)
        store.put("a", b"x" * 30_000)
        store.append("a", 30_000, b"y" * 10_000)
        with pytest.raises(Refused, match=FULL):
            store.append("a", 40_000, b"z" * 60_000)
        assert store.get("a", 0, 40_000) == b"x" * 30_000 + b"y" * 10_000
        with pytest.raises(AlreadyThere):
            store.append("a", 40_000, b"w")


def test_a_disk_that_takes_no_writes(tmp_path: Path, runner: asyncio.Runner) -> None:
    with small_disk(tmp_path / "disk", "ro"):
        store = Used(open_backend(TierSettings(url=f"file://{tmp_path}/disk"), DIRECTORY), runner)
        with pytest.raises(Refused, match="may not write there: give its user the directory"):
            store.put("a", b"")
        path = tmp_path / "disk" / DIRECTORY / "a"
        subprocess.run(["mount", "-o", "remount,rw", str(tmp_path / "disk")], check=True)
        store.put("a", b"abc")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(Refused, match="may not write there: give its user the directory"):
            store.append("a", 3, b"d")
        assert path.read_bytes() == b"abc"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_directory_of_another_user(tmp_path: Path, runner: asyncio.Runner) -> None:
    store = Used(open_backend(TierSettings(url=f"file://{tmp_path}/tier"), DIRECTORY), runner)
    os.seteuid(65534)
    try:
        with pytest.raises(Refused, match="may not write there: give its user the directory"):
            store.put("a", b"")
    finally:
        os.seteuid(0)


def test_a_file_in_the_place_of_the_directory(tmp_path: Path, runner: asyncio.Runner) -> None:
    store = Used(open_backend(TierSettings(url=f"file://{tmp_path}/tier"), DIRECTORY), runner)
    (tmp_path / "tier").rmdir()
    (tmp_path / "tier").touch()
    assert_refused(store, "something else is in its place: mount it again")


def test_no_directory_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"tiers\.url=file:.*the directory cannot be used"):
        open_backend(TierSettings(url=f"file://{tmp_path}/file/tier"), DIRECTORY)


def test_options_that_others_can_read(tmp_path: Path) -> None:
    options = write_options(tmp_path / "options", 1)
    options.chmod(0o640)
    with pytest.raises(SettingsError, match=f"others can read it; chmod 600 {options}"):
        open_backend(TierSettings(url="s3://b", options_path=str(options)), DIRECTORY)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "write one JSON object of texts"),
        ('{"a": 1}', "write one JSON object of texts"),
    ],
)
def test_options_that_are_none(tmp_path: Path, content: str, sentence: str) -> None:
    options = write_options(tmp_path / "options", 1)
    options.write_text(content)
    with pytest.raises(SettingsError, match=sentence):
        open_backend(TierSettings(url="s3://b", options_path=str(options)), DIRECTORY)


def test_an_option_that_the_store_does_not_know(tmp_path: Path) -> None:
    options = write_options(tmp_path / "options", 1)
    options.write_text('{"endpont": "http://127.0.0.1:1"}')
    with pytest.raises(SettingsError, match="endpont"):
        open_backend(TierSettings(url="s3://b", options_path=str(options)), DIRECTORY)
