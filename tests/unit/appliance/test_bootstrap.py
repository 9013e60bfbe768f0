"""Set-up on machines that lack things."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from webapp.appliance import bootstrap
from webapp.appliance.place import PROJECT_DIR


def test_it_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse((PROJECT_DIR / "webapp/appliance/bootstrap.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def wanted(*, dev: bool) -> list[Requirement]:
    project = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["dev"] if dev else []
    return [Requirement(each) for each in (*project["dependencies"], *extra)]


@pytest.mark.parametrize("dev", [False, True])
def test_every_wanted_package_has_a_locked_version(dev: bool) -> None:
    found = bootstrap.locked((bootstrap.DEV_LOCK if dev else bootstrap.LOCK).read_text())
    for requirement in wanted(dev=dev):
        versions = re.findall(r"==(\S+)", found.get(canonicalize_name(requirement.name), ""))
        assert any(version in requirement.specifier for version in versions), f"{requirement}: run `make lock`"
    assert bootstrap.BUILDER in found, "what comes as source is built with it"


def test_both_locks_hold_the_same_of_what_both_have() -> None:
    run, dev = (bootstrap.locked(path.read_text()) for path in (bootstrap.LOCK, bootstrap.DEV_LOCK))
    assert run == {name: dev.get(name) for name in run}


@pytest.mark.parametrize("path", [bootstrap.LOCK, bootstrap.DEV_LOCK], ids=lambda path: path.name)
def test_a_lock_holds_versions_with_hashes_and_nothing_else(path: Path) -> None:
    text = path.read_text()
    found = bootstrap.locked(text)
    assert "".join(found.values()) == text, "a line that is no package's"
    hashed = re.compile(r"[\w.-]+==\S+(?: ;[^\n]*?)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    for name, part in found.items():
        assert re.sub(hashed, "", part) == "", name


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            ["WARNING: Retrying after NewConnectionError", "ERROR: No matching distribution found for x"],
            "no package registry answers",
        ),
        (
            ["  NameResolutionError: Temporary failure", "ERROR: Could not find a version"],
            "check the network, or name a mirror",
        ),
        (["ERROR: Could not install packages: [Errno 28] No space left on device"], "the disk is full"),
        (
            ["ERROR: ResolutionImpossible: for help see there"],
            r"or it lacks them; .*again \(ERROR: ResolutionImpossible\)$",
        ),
        (["ERROR: Failed building wheel for x"], r"cannot be installed \(ERROR: Failed building wheel for x\)$"),
        (
            ["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "    Got 00"],
            "is not the one that was locked",
        ),
        ([], "pip said nothing"),
    ],
)
def test_a_failed_installation_is_one_sentence(lines: list[str], sentence: str) -> None:
    with pytest.raises(bootstrap.Missing, match=sentence):
        raise bootstrap.Missing(bootstrap.explain(lines))


def test_progress_is_a_few_lines() -> None:
    told: list[str] = []
    progress = bootstrap.Progress(told.append)
    for number in range(25):
        progress.saw(f"Collecting package{number}==1\n")
        progress.saw(f"  Downloading package{number}-1-py3-none-any.whl (1.5 MB)\n")
    progress.saw("  Downloading somewhere/pyspark-4.3.0.tar.gz (455.2 MB)\n")
    progress.saw("Installing collected packages: a, b, c\n")
    assert told == [
        "set-up:   10 packages found",
        "set-up:   20 packages found",
        "set-up:   downloading pyspark-4.3.0.tar.gz (455.2 MB)",
        "set-up:   installing collected packages",
    ]


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an `apt-get` and nothing else on PATH; what it installs appears there."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "apt-get").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n. {tmp_path}/apt\n')
    (tools / "apt-get").chmod(0o755)
    (tmp_path / "apt").write_text("exit 0\n")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


def test_missing_programs_are_installed_in_one_go(bare_machine: Path) -> None:
    tools = bare_machine / "bin"
    (bare_machine / "apt").write_text(
        f"for each in chromium-headless-shell gcc; do : > {tools}/$each; /bin/chmod +x {tools}/$each; done\n"
    )
    assert bootstrap.main(["programs", "chromium", "gcc"]) == 0
    assert bootstrap.main(["programs", "chromium", "gcc"]) == 0
    asked = (bare_machine / "asked").read_text()
    assert asked == "install -y --no-install-recommends -q chromium-headless-shell gcc\n"


def test_what_this_debian_does_not_have_is_replaced_and_holds_up_nothing_else(bare_machine: Path) -> None:
    tools = bare_machine / "bin"
    (bare_machine / "apt").write_text(
        'case "$*" in *headless*) exit 100;; esac\n'
        f"for each in chromium gcc; do : > {tools}/$each; /bin/chmod +x {tools}/$each; done\n"
    )
    assert bootstrap.main(["programs", "chromium", "gcc"]) == 0


def test_any_chromium_that_is_there_will_do(bare_machine: Path) -> None:
    (bare_machine / "bin" / "chromium").touch(mode=0o755)
    assert bootstrap.main(["programs", "chromium"]) == 0
    assert not (bare_machine / "asked").exists()


def test_what_cannot_be_installed_is_one_sentence(bare_machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bare_machine / "apt").write_text("exit 100\n")
    assert bootstrap.main(["programs", "chromium"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "set-up: the browser tests need chromium; install Debian's chromium (apt-get install chromium) and run again"
    )


def test_an_ordinary_user_is_told_and_installs_nothing(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert bootstrap.main(["programs", "java"]) == 1
    assert "the tests of Spark reports need java; install Debian's openjdk-17-jre-headless" in capsys.readouterr().out
    assert not (bare_machine / "asked").exists()
