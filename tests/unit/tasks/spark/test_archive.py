"""The class-data archive: made once, used afterwards, never a reason to fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tasks.spark.archive import KEPT, Archive, cache_dir


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"{name}.jar" for name in ("a", "b")]
    for path in found:
        path.write_bytes(b"classes")
    return found


def archive(tmp_path: Path, jars: list[Path]) -> Archive:
    return Archive(tmp_path / "cache" / "logboom", "/java", jars)


def draft_of(options: list[str]) -> Path:
    (option,) = options
    assert option.startswith("-XX:ArchiveClassesAtExit=")
    return Path(option.partition("=")[2])


def test_the_first_server_makes_it_and_the_next_uses_it(tmp_path: Path, jars: list[Path]) -> None:
    made = archive(tmp_path, jars)
    draft_of(made.options()).write_bytes(b"x")
    assert made.is_drafting
    made.ended(143, came_up=True, did_work=True)
    assert not made.is_drafting
    again = archive(tmp_path, jars)
    assert again.options() == [f"-XX:SharedArchiveFile={made.path}", "-Xshare:auto"]
    assert not again.is_drafting
    assert [path.name for path in made.path.parent.iterdir()] == [made.path.name], "no draft is left"


@pytest.mark.parametrize(("exit_code", "did_work"), [(-9, True), (1, True), (143, False)])
def test_a_draft_that_is_not_whole_or_knows_no_report_is_dropped(
    tmp_path: Path, jars: list[Path], exit_code: int, did_work: bool
) -> None:
    made = archive(tmp_path, jars)
    draft = draft_of(made.options())
    draft.write_bytes(b"x")
    made.ended(exit_code, came_up=True, did_work=did_work)
    assert not made.path.exists()
    assert not draft.exists()


def test_one_with_which_no_server_starts_is_removed(tmp_path: Path, jars: list[Path]) -> None:
    made = archive(tmp_path, jars)
    draft_of(made.options()).write_bytes(b"x")
    made.ended(0, came_up=True, did_work=True)
    made.options()
    assert made.ended(-6, came_up=False, did_work=False)
    assert not made.path.exists()
    assert made.options()[0].startswith("-XX:ArchiveClassesAtExit=")
    assert not made.ended(1, came_up=False, did_work=False), "that one failed by itself"


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV])
def test_one_that_is_damaged_where_only_a_report_looks_is_removed(
    tmp_path: Path, jars: list[Path], number: signal.Signals
) -> None:
    """Java checks the head of an archive only: classes that are no classes any more crash it when they are used."""
    made = archive(tmp_path, jars)
    draft_of(made.options()).write_bytes(b"x")
    made.ended(0, came_up=True, did_work=True)
    made.options()
    assert not made.ended(-signal.SIGKILL, came_up=True, did_work=False), "it did not end by itself"
    made.options()
    assert not made.ended(-number, came_up=True, did_work=False), "whoever used it is told that it ended"
    assert not made.path.exists()


def test_a_java_that_makes_none_is_not_asked_again(tmp_path: Path, jars: list[Path]) -> None:
    """Else each server would be stopped soon after its first report, for nothing."""
    made = archive(tmp_path, jars)
    made.options()
    made.ended(143, came_up=True, did_work=True)
    assert made.options() == []
    assert not made.is_drafting


def test_what_killed_servers_left_is_removed_and_what_others_write_stays(tmp_path: Path, jars: list[Path]) -> None:
    made, other = archive(tmp_path, jars), archive(tmp_path, jars)
    left, written = draft_of(made.options()), draft_of(other.options())
    assert left != written, "two containers may share the directory, and number their processes alike"
    for path in (left, written):
        path.write_bytes(b"x")
    os.utime(left, (1, 1))
    archive(tmp_path, jars).options()
    assert (left.exists(), written.exists()) == (False, True)


def test_other_jars_have_another_one_and_only_a_few_are_kept(tmp_path: Path, jars: list[Path]) -> None:
    for number in range(KEPT + 2):
        jars[0].write_bytes(b"x" * number)
        made = archive(tmp_path, jars)
        draft_of(made.options()).write_bytes(b"x")
        made.ended(0, came_up=True, did_work=True)
        os.utime(made.path, (number, number))
    assert len(list(made.path.parent.iterdir())) == KEPT
    assert made.path.exists()


def test_no_place_for_it_is_no_reason_to_fail(
    tmp_path: Path, jars: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    assert archive(tmp_path, jars).options() == []
    assert "without a class-data archive" in caplog.text


def test_it_lies_in_the_users_cache() -> None:
    assert cache_dir({"XDG_CACHE_HOME": "/cache", "HOME": "/users/ann"}) == Path("/cache/logboom")
    assert cache_dir({}) is None
    assert cache_dir({"XDG_CACHE_HOME": "cache", "HOME": "/users/ann"}) == Path("/users/ann/.cache/logboom")
