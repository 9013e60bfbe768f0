"""What pip installs: a wheel with every module and every file that the programs read, and a command that runs from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from webapp.appliance.place import PROJECT_DIR, user_data_dir

PACKAGES = ("remoting", "brokerd", "controllerd", "tasks", "webapp")


def tracked(*below: str) -> set[str]:
    """The repository's files below these paths."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *below], cwd=PROJECT_DIR, capture_output=True, text=True, check=True
    ).stdout
    return {name for name in listed.split("\0") if name and (PROJECT_DIR / name).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip does it, but from a copy and with the build backend of this environment, so that nothing is fetched."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    for name in tracked(*PACKAGES, "pyproject.toml", "README.md", "manage.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT_DIR / name, source / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(place)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = place.glob("logboom-*.whl")
    return built


def test_it_holds_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == tracked(*PACKAGES)


def test_what_it_holds_runs_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    installed, home = tmp_path / "site-packages", tmp_path / "home"
    home.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
        (points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "logboom = webapp.appliance.command:main" in archive.read(points).decode().splitlines()

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("LOGBOOM_", "XDG_"))}
        environ |= {"PYTHONPATH": str(installed), "HOME": str(home), "PYTHONSAFEPATH": "1"}
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=home,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    command = "import sys; from webapp.appliance.command import main; sys.argv[0] = 'logboom'; main()"
    status = run(command, "status")
    data = home / ".local/share/logboom"
    assert (status.returncode, status.stdout) == (2, f"down: no appliance runs on {data}\n"), status.stderr
    assert run(command, "up", "--help").stdout.startswith("usage: logboom up ")

    parts = run(
        f"import os; os.environ['LOGBOOM_DATA_DIR'] = {str(tmp_path / 'data')!r}\n"
        "import brokerd.assembly, controllerd.assembly, tasks.app, django; django.setup()\n"
        "from django.contrib.staticfiles import finders; from django.template.loader import get_template\n"
        "from tasks.spark.session import shipped_code; from tasks.spark.source import LogboomSource\n"
        "for name in ('base.html', 'clusters/_landing.html'): print(get_template(name).origin.name)\n"
        "print(finders.find('js/console.js')); print(brokerd.__file__); print(LogboomSource.name(), len(shipped_code()) > 0)"
    )
    assert parts.returncode == 0, parts.stderr
    *files, source = parts.stdout.splitlines()
    assert all(Path(each).is_relative_to(installed) for each in files), files
    assert source == "logboom True"


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", "/h/.local/share/logboom"), ("/data of mine", "/data of mine/logboom"), ("near", "/h/.local/share/logboom")],
)
def test_data_of_an_installed_appliance_lie_with_the_users(named: str, expected: str) -> None:
    assert user_data_dir({"XDG_DATA_HOME": named}, Path("/h")) == Path(expected)


def test_data_of_a_checkout_lie_in_it() -> None:
    from webapp.appliance import place

    assert (place.DEFAULT_DATA_DIR, place.COMMAND) == (PROJECT_DIR / "data", "manage.py")
