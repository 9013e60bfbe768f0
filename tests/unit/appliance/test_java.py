"""Finding a Java runtime, with programs that pretend to be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from webapp.appliance import java


def pretend(bin_dir: Path, version: str, home: str = "/jvm") -> None:
    bin_dir.mkdir(parents=True)
    program = bin_dir / "java"
    program.write_text(
        f"#!/bin/sh\nprintf '    java.home = {home}\\n    java.specification.version = {version}\\n' >&2\n"
    )
    program.chmod(0o755)


def test_java_home_comes_first(tmp_path: Path) -> None:
    pretend(tmp_path / "home" / "bin", "21", "/opt/jdk 21")
    pretend(tmp_path / "path", "17")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'path'}:/bin"}
    assert java.find(environ) == java.Java("/opt/jdk 21", None)


def test_an_old_java_home_does_not_hide_a_good_one_on_path(tmp_path: Path) -> None:
    pretend(tmp_path / "home" / "bin", "1.8")
    pretend(tmp_path / "path", "17", "/jvm17")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'path'}:/bin"}
    assert java.find(environ).home == "/jvm17"


def test_what_is_too_old_is_said(tmp_path: Path) -> None:
    pretend(tmp_path / "path", "11")
    found = java.find({"PATH": f"{tmp_path / 'path'}:/bin"})
    assert found.home is None
    assert found.problem == (
        f"Spark reports need Java 17 or newer, but {tmp_path}/path/java (from PATH) is Java 11; "
        "install openjdk-17-jre-headless or set JAVA_HOME, then start again"
    )


def test_what_does_not_run_is_said(tmp_path: Path) -> None:
    found = java.find({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert f"{tmp_path}/bin/java (from JAVA_HOME) does not run" in (found.problem or "")


def test_no_java_at_all(tmp_path: Path) -> None:
    assert "no Java was found; install" in (java.find({"PATH": str(tmp_path)}).problem or "")


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where packages may be installed; `apt-get` writes down what it is asked and then does what `apt` says."""
    tools = tmp_path / "tools"
    tools.mkdir()
    apt_get = tools / "apt-get"
    apt_get.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n. {tmp_path}/apt\n')
    apt_get.chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tools}:/bin:/usr/bin")
    return tmp_path


def environ_of(debian: Path) -> dict[str, str]:
    return {"PATH": str(debian / "path")}


def asked(debian: Path) -> list[str]:
    path = debian / "asked"
    return path.read_text().splitlines() if path.exists() else []


def test_a_missing_runtime_is_installed(debian: Path) -> None:
    path = debian / "path"
    (debian / "apt").write_text(
        f"mkdir -p {path}; printf '#!/bin/sh\\necho java.home = /jvm\\necho java.specification.version = 17\\n' > {path}/java\n"
        f"chmod +x {path}/java\n"
    )
    said: list[str] = []
    assert java.find_or_install(environ_of(debian), said.append).home == "/jvm"
    assert asked(debian) == ["install -y --no-install-recommends -q openjdk-17-jre-headless"]
    assert said == ["installing a Java runtime for Spark (openjdk-17-jre-headless); this is done once"]


def test_package_lists_are_refreshed_and_the_second_name_tried(debian: Path) -> None:
    (debian / "apt").write_text("echo E: Unable to locate package; exit 100\n")
    found = java.find_or_install(environ_of(debian), lambda text: None)
    assert found.home is None
    assert (found.problem or "").endswith("(installing it failed: E: Unable to locate package)")
    install = "install -y --no-install-recommends -q"
    assert asked(debian) == [
        *(f"{install} openjdk-17-jre-headless", "update -q", f"{install} openjdk-17-jre-headless"),
        *(f"{install} default-jre-headless", "update -q", f"{install} default-jre-headless"),
    ]


def test_an_ordinary_user_installs_nothing(debian: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert java.find_or_install(environ_of(debian), lambda text: None).problem is not None
    assert asked(debian) == []
