"""The native library: built once, in a place of this user's own, and used only when it is right."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brokerd.native import building, library
from brokerd.native.building import CannotBuild
from brokerd.native.library import Library, choose
from remoting.errors import SettingsError
from tests.support.native_library import native_library


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, on a machine that has a compiler."""
    native_library()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "logboom" / "native"


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))


def test_it_is_built_once_where_nobody_else_can_write(cache: Path) -> None:
    first = library.load()
    (built,) = cache.iterdir()
    assert first.path == built
    assert [each.stat().st_mode & 0o777 for each in (cache.parent, cache, built)] == [0o700] * 3
    before = built.stat().st_mtime_ns, built.stat().st_ino
    assert library.load().path == built
    assert (built.stat().st_mtime_ns, built.stat().st_ino) == before


def test_its_name_changes_with_what_it_is_made_of(cache: Path, tmp_path: Path) -> None:
    compiler, sources = building.find_compiler(), tmp_path / "sources"
    sources.mkdir()
    for each in building.source_dir().glob("*.[ch]"):
        (sources / each.name).write_bytes(each.read_bytes())
    name = building.file_name(compiler, sources)
    assert name == building.file_name(compiler, building.source_dir())
    assert building.file_name(compiler, sources, ("-O0",)) != name
    for each in sorted(sources.iterdir()):
        name = building.file_name(compiler, sources)
        with each.open("a") as source:
            source.write("\n")
        assert building.file_name(compiler, sources) != name, f"{each.name} is on no list"


def test_the_sources_have_no_warnings(cache: Path, tmp_path: Path) -> None:
    flags = (*building.FLAGS, "-Wall", "-Wextra", "-Werror", "-Wconversion")
    building.compile_to(tmp_path / "strict.so", building.find_compiler(), building.source_dir(), flags)


def test_several_brokers_may_build_at_once(cache: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-m", "brokerd.native"], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = {each.communicate()[0] for each in started}
    assert [each.returncode for each in started] == [0, 0]
    assert said == {f"{path}\n" for path in cache.iterdir()}


def test_what_does_not_compile_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    target = tmp_path / "made" / "library.so"
    target.parent.mkdir()
    with pytest.raises(CannotBuild, match="ended with 1"):
        building.compile_to(
            target, building.find_compiler(), building.source_dir(), (*building.FLAGS, "-include", "/no")
        )
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize("which", ["cache", "cache/logboom", "cache/logboom/native"])
def test_a_directory_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / which).mkdir(parents=True)
    (tmp_path / which).chmod(0o777)
    with pytest.raises(CannotBuild, match="not this user's alone"):
        building.cache_dir({"XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_a_library_that_others_can_write_is_not_loaded(cache: Path) -> None:
    library.load().path.chmod(0o722)
    with pytest.raises(CannotBuild, match="not this user's alone"):
        library.load()


def test_a_file_that_is_no_library_is_not_used(cache: Path) -> None:
    path = library.load().path.with_name("other.so")
    path.write_bytes(b"\x7fELF and no more")
    with pytest.raises(CannotBuild, match="cannot be loaded"):
        Library(path)


def test_another_version_of_the_calls_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    with pytest.raises(CannotBuild, match="version"):
        library.load()


def test_a_library_that_disagrees_with_python_is_not_used(cache: Path) -> None:
    def disagrees(_library: Library) -> bool:
        return False

    chosen = choose("auto", [disagrees])
    assert (chosen.mode, chosen.library) == ("python", None)
    assert "other results than Python (disagrees)" in chosen.reason
    assert choose("auto").mode == "native"


def test_without_a_compiler_loops_run_in_python(no_compiler: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chosen = choose("auto")
    assert (chosen.mode, chosen.library) == ("python", None)
    assert [each.message for each in caplog.records] == [f"loops over messages run in Python: {chosen.reason}"]
    assert "no C compiler" in chosen.reason
    with pytest.raises(SettingsError, match=r"kernel\.mode=native: no C compiler"):
        choose("native")


def test_python_alone_looks_for_nothing(no_compiler: None, tmp_path: Path) -> None:
    assert choose("python").mode == "python"
    assert not (tmp_path / "cache").exists()


def test_a_compiler_that_hangs_is_given_up(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "cc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    timeouts: Any = building
    monkeypatch.setattr(timeouts, "_VERSION_TIMEOUT_S", 0.1)
    with pytest.raises(CannotBuild, match="timed out"):
        building.build(building.cache_dir({"XDG_CACHE_HOME": str(tmp_path / "cache")}), str(slow))
